package io.lakemirror.delta;

import java.io.EOFException;
import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import org.apache.hadoop.io.compress.CompressionCodec;
import org.apache.hadoop.io.compress.CompressionInputStream;

/** How much text a file holds and how long its lines are, found with the memory of one block. */
public final class TextMeasure {

    private static final int BLOCK = 1 << 16;

    private long size = 0;
    private long longest = 0;
    private String damage = null;

    private TextMeasure() {}

    /**
     * Measure a file until its end, or until it holds more than these many bytes or a longer line. The codec is null
     * for a file that is not compressed. Throws what reading the file throws, but nothing that decompressing it does.
     */
    public static TextMeasure of(InputStream file, CompressionCodec codec, long mostBytes, long longestLine)
            throws IOException {
        TextMeasure found = new TextMeasure();
        if (codec == null) {
            found.read(file, mostBytes, longestLine);
            return found;
        }
        Watched watched = new Watched(file);
        try {
            CompressionInputStream text = codec.createInputStream(watched);
            try {
                found.read(text, mostBytes, longestLine);
            } finally {
                text.close();
            }
        } catch (IOException failure) {
            if (watched.failure != null) {
                throw watched.failure;
            }
            found.damage = failure instanceof EOFException ? "it ends too early" : failure.getMessage();
        } catch (RuntimeException failure) {
            found.damage = failure.toString();
        } catch (LinkageError failure) {
            found.damage = failure.toString();
        } catch (OutOfMemoryError failure) {
            found.damage = "it asks for a block of memory that there is not";
        }
        return found;
    }

    /** The bytes of text, as far as it was read. */
    public long size() {
        return size;
    }

    /** The bytes of the longest line, without its line feed, as far as it was read. */
    public long longest() {
        return longest;
    }

    /** Why the text cannot be decompressed to its end, or null. */
    public String damage() {
        return damage;
    }

    private void read(InputStream text, long mostBytes, long longestLine) throws IOException {
        byte[] block = new byte[BLOCK];
        long line = 0;
        while (size <= mostBytes && longest <= longestLine) {
            int count = text.read(block, 0, BLOCK);
            if (count < 0) {
                return;
            }
            size += count;
            for (int at = 0; at < count; at++) {
                if (block[at] == '\n') {
                    line = 0;
                } else {
                    line++;
                    if (line > longest) {
                        longest = line;
                    }
                }
            }
        }
    }

    /** Remembers the failure of a file that cannot be read, which is none of its content. */
    private static final class Watched extends FilterInputStream {

        private IOException failure = null;

        private Watched(InputStream file) {
            super(file);
        }

        public int read() throws IOException {
            try {
                return in.read();
            } catch (IOException error) {
                failure = error;
                throw error;
            }
        }

        public int read(byte[] bytes, int from, int most) throws IOException {
            try {
                return in.read(bytes, from, most);
            } catch (IOException error) {
                failure = error;
                throw error;
            }
        }

        public void close() {}
    }
}
