package io.lakemirror.delta;

import io.delta.storage.HDFSLogStore;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

/**
 * Delta's log on local disks. Commits are those of Delta's own log store; a listing asks only about the files that
 * it returns. Hadoop asks about each file of a folder, and a log that is written every few seconds has tens of
 * thousands of them.
 */
public final class ListingLogStore extends HDFSLogStore {

    private static final ConcurrentHashMap LISTED = new ConcurrentHashMap();

    public ListingLogStore(Configuration settings) {
        super(settings);
    }

    public Iterator listFrom(Path path, Configuration settings) throws IOException {
        FileSystem files = path.getFileSystem(settings);
        if (!(files instanceof LocalFileSystem || files instanceof RawLocalFileSystem)) {
            return super.listFrom(path, settings);
        }
        Path folder = path.getParent();
        count(folder);
        String[] names = new File(folder.toUri().getPath()).list();
        if (names == null) {
            throw new FileNotFoundException("No such file or directory: " + folder);
        }
        List from = new ArrayList();
        for (int i = 0; i < names.length; i++) {
            if (names[i].compareTo(path.getName()) >= 0 && !isChecksum(names[i])) {
                from.add(names[i]);
            }
        }
        Object[] sorted = from.toArray();
        Arrays.sort(sorted);
        List found = new ArrayList(sorted.length);
        for (int i = 0; i < sorted.length; i++) {
            try {
                found.add(files.getFileStatus(new Path(folder, new Path(null, null, (String) sorted[i]))));
            } catch (FileNotFoundException gone) {
                // deleted since the folder was read, as a listing that comes later would show
            }
        }
        return found.iterator();
    }

    /** Hadoop's own files with checksums, which no listing of it shows. */
    private static boolean isChecksum(String name) {
        return name.startsWith(".") && name.endsWith(".crc");
    }

    /** Count the listing of a log's folder. */
    static void count(Path folder) {
        String name = folder.toString();
        LISTED.putIfAbsent(name, new AtomicLong());
        ((AtomicLong) LISTED.get(name)).incrementAndGet();
    }

    /** How often the folder of each log was listed, by its path. */
    public static ConcurrentHashMap listed() {
        return LISTED;
    }
}
