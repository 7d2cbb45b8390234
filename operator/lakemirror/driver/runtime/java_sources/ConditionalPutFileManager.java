package io.lakemirror.delta;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * The files of a streaming query's checkpoint on an object store with conditional puts: of two drivers that record one
 * batch, or its end, one succeeds. Spark's own managers rename, which on such a store is neither atomic nor exclusive.
 */
public final class ConditionalPutFileManager extends FileSystemBasedCheckpointFileManager {

    public ConditionalPutFileManager(Path path, Configuration settings) {
        super(path, settings);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
        try {
            FSDataOutputStream stream = overwrite ? fs().create(path, true) : ConditionalPut.open(fs(), path);
            return new Put(fs(), path, stream, overwrite);
        } catch (IOException failure) {
            throw new java.io.UncheckedIOException(failure);
        }
    }

    /** Whose close() creates the object. */
    private static final class Put extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final FileSystem files;
        private final Path path;
        private final FSDataOutputStream stream;
        private final boolean overwrite;

        Put(FileSystem files, Path path, FSDataOutputStream stream, boolean overwrite) {
            super(stream);
            this.files = files;
            this.path = path;
            this.stream = stream;
            this.overwrite = overwrite;
        }

        public void close() throws IOException {
            try {
                super.close();
            } catch (IOException failure) {
                if (!overwrite && files.exists(path)) {
                    throw ConditionalPut.taken(path, failure);
                }
                throw failure;
            }
        }

        public void cancel() {
            stream.abort();
        }
    }
}
