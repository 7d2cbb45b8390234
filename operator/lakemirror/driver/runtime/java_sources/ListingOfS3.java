package io.lakemirror.delta;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.util.Iterator;
import java.util.NoSuchElementException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.spark.unsafe.Platform;

/**
 * A listing of a folder on S3 that begins at a name. Hadoop's client has what it takes (S3AFileSystem and Listing),
 * and is looked up when it is called, because this is compiled where its jar need not be.
 */
final class ListingOfS3 {

    private static final String PACKAGE = "org.apache.hadoop.fs.s3a.";

    private static final PathFilter ALL = new PathFilter() {
        public boolean accept(Path path) {
            return true;
        }
    };

    private ListingOfS3() {}

    /**
     * Return the files of a folder from a name on, in order, or null where the client cannot list so: it has
     * another version, or is to use the first version of S3's listing. A page of the listing is asked for when its
     * first file is: Delta looks for expired files from the first one on, and stops at one that is not.
     */
    static Iterator from(FileSystem files, Path path) throws IOException {
        RemoteIterator listed;
        try {
            listed = listed(files, path);
        } catch (InvocationTargetException failure) {
            if (failure.getCause() instanceof IOException) {
                throw (IOException) failure.getCause();
            }
            if (failure.getCause() instanceof RuntimeException) {
                throw (RuntimeException) failure.getCause();
            }
            return null;
        } catch (ReflectiveOperationException another) {
            return null;
        }
        if (listed == null) {
            return null;
        }
        return new FilesFrom(listed, path.getName());
    }

    /** The files of a listing whose names are not below one. A page that cannot be had raises its IOException. */
    private static final class FilesFrom implements Iterator {

        private final RemoteIterator listed;
        private final String first;
        private FileStatus next;

        FilesFrom(RemoteIterator listed, String first) throws IOException {
            this.listed = listed;
            this.first = first;
            advance();
        }

        public boolean hasNext() {
            return next != null;
        }

        public Object next() {
            if (next == null) {
                throw new NoSuchElementException();
            }
            FileStatus found = next;
            try {
                advance();
            } catch (IOException failure) {
                Platform.throwException(failure);
            }
            return found;
        }

        private void advance() throws IOException {
            next = null;
            while (next == null && listed.hasNext()) {
                FileStatus each = (FileStatus) listed.next();
                if (each.isFile() && each.getPath().getName().compareTo(first) >= 0) {
                    next = each;
                }
            }
        }

        public void remove() {
            throw new UnsupportedOperationException();
        }
    }

    private static RemoteIterator listed(FileSystem files, Path path) throws ReflectiveOperationException {
        Path folder = path.getParent();
        String prefix = call(files, "pathToKey", Path.class, folder) + "/";
        Class[] texts = {String.class, String.class};
        Object[] given = {prefix, "/"};
        Object request = files.getClass().getMethod("createListObjectsRequest", texts).invoke(files, given);
        if (((Boolean) call(request, "isV1")).booleanValue()) {
            return null;
        }
        Object asked = call(request, "getV2");
        Class builders = Class.forName(asked.getClass().getName() + "$Builder", true, asked.getClass().getClassLoader());
        Object builder = call(asked, "toBuilder");
        builders.getMethod("startAfter", String.class).invoke(builder, before(prefix + path.getName()));
        Object from = builders.getMethod("build").invoke(builder);
        Class requests = request.getClass();
        Object wanted = requests.getMethod("v2", asked.getClass()).invoke(null, from);
        Object listing = call(files, "getListing");
        Class acceptors = kind(files, PACKAGE + "Listing$FileStatusAcceptor");
        Object acceptor = kind(files, PACKAGE + "Listing$AcceptAllButSelfAndS3nDirs")
                .getConstructor(Path.class)
                .newInstance(folder);
        Class spans = kind(files, "org.apache.hadoop.fs.store.audit.AuditSpan");
        Class[] kinds = {Path.class, requests, PathFilter.class, acceptors, spans};
        Object[] all = {folder, wanted, ALL, acceptor, call(files, "getActiveAuditSpan")};
        return (RemoteIterator) listing.getClass().getMethod("createFileStatusListingIterator", kinds).invoke(listing, all);
    }

    private static Class kind(FileSystem files, String name) throws ClassNotFoundException {
        return Class.forName(name, true, files.getClass().getClassLoader());
    }

    private static Object call(Object on, String method) throws ReflectiveOperationException {
        return on.getClass().getMethod(method).invoke(on);
    }

    private static Object call(Object on, String method, Class kind, Object given) throws ReflectiveOperationException {
        return on.getClass().getMethod(method, kind).invoke(on, given);
    }

    /** A key before this one, and after all that precede it, but for some that no file of a log has. */
    private static String before(String key) {
        int last = key.length() - 1;
        return key.substring(0, last) + (char) (key.charAt(last) - 1);
    }
}
