package io.lakemirror.delta;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's log on an object store with conditional puts. A commit is one put that the store refuses where that
 * version of the table is there already, whoever wrote it: no lock and no database are needed.
 */
public final class ConditionalPutLogStore extends HadoopFileSystemLogStore {

    private static final String S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem";

    public ConditionalPutLogStore(Configuration settings) {
        super(settings);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration settings) throws IOException {
        StringBuilder lines = new StringBuilder();
        while (actions.hasNext()) {
            lines.append(actions.next()).append('\n');
        }
        byte[] content = lines.toString().getBytes(StandardCharsets.UTF_8);
        FileSystem files = path.getFileSystem(settings);
        if (overwrite.booleanValue()) {
            ConditionalPut.put(files.create(path, true), content);
        } else {
            ConditionalPut.create(files, path, content);
        }
    }

    /**
     * The files of the log from a name on. S3 is asked for these alone, so that a request brings a thousand of the
     * newest files, however many older ones there are. Delta has such a listing for its own log store of S3
     * (delta.enableFastS3AListFrom), but for another version of Hadoop.
     */
    public Iterator listFrom(Path path, Configuration settings) throws IOException {
        FileSystem files = path.getFileSystem(settings);
        ListingLogStore.count(path.getParent());
        if (S3A.equals(files.getClass().getName())) {
            Iterator found = ListingOfS3.from(files, files.makeQualified(path));
            if (found != null && found.hasNext()) {
                return found;
            }
        }
        return super.listFrom(path, settings);
    }

    /** An object shows once it is complete. */
    public Boolean isPartialWriteVisible(Path path, Configuration settings) {
        return Boolean.FALSE;
    }
}
