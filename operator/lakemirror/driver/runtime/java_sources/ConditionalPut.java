package io.lakemirror.delta;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.Arrays;
import org.apache.commons.io.IOUtils;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Creates an object only where there is none: of several writers of one path, one succeeds. */
final class ConditionalPut {

    /** Hadoop's Options.CreateFileOptionKeys: the store itself refuses the object at the end of the write. */
    private static final String CONDITION = "fs.option.create.conditional.overwrite";

    private static final int ATTEMPTS = 3;

    private ConditionalPut() {}

    /**
     * A stream whose close() creates the object, or fails where there is one. Google's connector sends its condition
     * with every create that does not overwrite, and knows no option for it.
     */
    static FSDataOutputStream open(FileSystem files, Path path) throws IOException {
        FSDataOutputStreamBuilder builder = files.createFile(path).recursive().overwrite(false);
        if (!"gs".equals(files.getScheme())) {
            builder.must(CONDITION, "true");
        }
        return (FSDataOutputStream) builder.build();
    }

    /**
     * Create an object with this content. Throws FileAlreadyExistsException where there is another one, and any
     * other IOException where nothing stands at the path after several attempts, or the store cannot be asked
     * what does.
     *
     * A client that gets no answer to a put sends it again, and then is refused because of what it wrote itself. So
     * what stands at the path decides and not how the put failed. Where nothing does, the put is sent again: S3 asks
     * for that when it answers 409 ConditionalRequestConflict (PutObject, If-None-Match, in its API reference).
     */
    static void create(FileSystem files, Path path, byte[] content) throws IOException {
        IOException last = null;
        for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
            try {
                put(open(files, path), content);
                return;
            } catch (IOException failure) {
                byte[] found = read(files, path, failure);
                if (found != null) {
                    requireOurs(path, found, content, failure);
                    return;
                }
                last = failure;
            }
        }
        throw new IOException(path + " could not be created, and nothing stands there", last);
    }

    private static void requireOurs(Path path, byte[] found, byte[] content, IOException failure) throws IOException {
        if (!Arrays.equals(found, content)) {
            throw taken(path, failure);
        }
    }

    /** Write all of the content, or nothing. */
    static void put(FSDataOutputStream stream, byte[] content) throws IOException {
        try {
            stream.write(content);
        } catch (IOException failure) {
            stream.abort();
            throw failure;
        }
        stream.close();
    }

    /** The error of a writer that came second, in the words that Delta and Spark understand. */
    static IOException taken(Path path, IOException failure) {
        IOException taken = new FileAlreadyExistsException(path + " already exists");
        taken.initCause(failure);
        return taken;
    }

    private static byte[] read(FileSystem files, Path path, IOException failure) throws IOException {
        try {
            FSDataInputStream stream = files.open(path);
            try {
                return IOUtils.toByteArray(stream);
            } finally {
                stream.close();
            }
        } catch (FileNotFoundException nothing) {
            return null;
        } catch (IOException unknown) {
            failure.addSuppressed(unknown);
            throw failure;
        }
    }
}
