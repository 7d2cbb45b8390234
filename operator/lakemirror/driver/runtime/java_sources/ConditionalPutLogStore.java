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

    /** An object shows once it is complete. */
    public Boolean isPartialWriteVisible(Path path, Configuration settings) {
        return Boolean.FALSE;
    }
}
