package io.lakemirror.delta;

import com.github.luben.zstd.ZstdInputStream;
import java.io.ByteArrayInputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.zip.Inflater;
import java.util.zip.InflaterInputStream;
import org.apache.commons.compress.compressors.bzip2.BZip2CompressorInputStream;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.parquet.format.DictionaryPageHeader;
import org.apache.parquet.format.PageHeader;
import org.apache.parquet.format.Util;
import org.apache.parquet.hadoop.metadata.BlockMetaData;
import org.apache.parquet.hadoop.metadata.ColumnChunkMetaData;
import org.tukaani.xz.XZInputStream;
import org.xerial.snappy.Snappy;

/**
 * How much the parts of a Parquet or Avro file hold: the pages of the one, the blocks of the other. Readers believe what
 * these say about themselves, and allocate the memory for it.
 */
public final class ContainerMeasure {

    private static final byte[] AVRO = {'O', 'b', 'j', 1};
    private static final int SYNC = 16;
    private static final int LONGEST_ENTRY = 1 << 24;
    private static final int CHUNK = 1 << 16;
    private static final int NEAR = 1 << 20;

    private final long most;
    private final long freely;
    private final long times;
    private long total = 0;
    private long largest = 0;
    private long rows = 0;
    private boolean crowded = false;

    private ContainerMeasure(long most, long freely, long times) {
        this.most = most;
        this.freely = freely;
        this.times = times;
    }

    /** What all rows hold, about, in bytes, as far as the file was read. */
    public long total() {
        return total;
    }

    /** What the part holds that is too large, in bytes, or 0 if there is none. */
    public long largest() {
        return largest;
    }

    /** Whether a block has more rows than bytes, so that their number costs nothing. */
    public boolean crowded() {
        return crowded;
    }

    /** The number of rows of an Avro file. */
    public long rows() {
        return rows;
    }

    /**
     * Measure the pages of the row groups of a Parquet file, until one is too large: it holds more than the most, or
     * more than may be held freely, and more than so many times its own size. Throws IOException where the file is
     * damaged.
     */
    public static ContainerMeasure parquet(
            FSDataInputStream file, long size, List groups, long most, long freely, long times) throws IOException {
        ContainerMeasure found = new ContainerMeasure(most, freely, times);
        for (Iterator group = groups.iterator(); group.hasNext() && found.largest == 0; ) {
            List columns = ((BlockMetaData) group.next()).getColumns();
            for (Iterator column = columns.iterator(); column.hasNext() && found.largest == 0; ) {
                found.pages(file, size, (ColumnChunkMetaData) column.next());
            }
        }
        return found;
    }

    private void pages(FSDataInputStream file, long size, ColumnChunkMetaData column) throws IOException {
        long at = column.getStartingPos();
        long end = at + column.getTotalSize();
        long values = column.getValueCount();
        if (at < 0 || end < at || end > size || values < 0) {
            throw new IOException("its footer names bytes that it does not have");
        }
        total = plus(total, values);
        while (at < end && largest == 0) {
            go(file, at);
            PageHeader page = Util.readPageHeader(file);
            long stored = page.getCompressed_page_size();
            long held = page.getUncompressed_page_size();
            if (stored < 0 || held < 0) {
                throw new IOException("a page has a negative size");
            }
            part(stored, held);
            if (page.isSetDictionary_page_header()) {
                DictionaryPageHeader dictionary = page.getDictionary_page_header();
                held = product(Math.max(1, held / Math.max(1, dictionary.getNum_values())), values);
            }
            total = plus(total, held);
            at = file.getPos() + stored;
        }
    }

    /** Go on to a later byte: by reading, if it is near, since to seek in an object store is a request. */
    private static void go(FSDataInputStream file, long to) throws IOException {
        long left = to - file.getPos();
        if (left < 0 || left > NEAR) {
            file.seek(to);
            return;
        }
        byte[] chunk = new byte[CHUNK];
        while (left > 0) {
            int count = file.read(chunk, 0, (int) Math.min(CHUNK, left));
            if (count < 0) {
                throw new EOFException("it ends too early");
            }
            left -= count;
        }
    }

    /**
     * Measure the blocks of an Avro file, until one is too large, or has more rows than bytes. Throws IOException where
     * the file is damaged.
     */
    public static ContainerMeasure avro(InputStream file, long size, long most, long freely, long times)
            throws IOException {
        ContainerMeasure found = new ContainerMeasure(most, freely, times);
        if (!Arrays.equals(AVRO, bytes(file, AVRO.length))) {
            throw new IOException("it is not an Avro file");
        }
        Map about = metadata(file);
        byte[] sync = bytes(file, SYNC);
        byte[] codec = (byte[]) about.get("avro.codec");
        String name = codec == null ? "null" : new String(codec, StandardCharsets.UTF_8);
        for (int first = file.read(); first >= 0 && found.fits(); first = file.read()) {
            found.block(file, size, varint(file, first), name, sync);
        }
        return found;
    }

    private void block(InputStream file, long size, long count, String codec, byte[] sync) throws IOException {
        long stored = varint(file, file.read());
        if (count < 0 || stored < 0 || stored > size || stored > Integer.MAX_VALUE - CHUNK) {
            throw new IOException("a block has a size that it cannot have");
        }
        byte[] block = bytes(file, (int) stored);
        if (!Arrays.equals(sync, bytes(file, SYNC))) {
            throw new IOException("a block does not end where it says");
        }
        long held = held(block, codec, Math.min(most, Math.max(freely, times * stored)));
        part(stored, held);
        crowded = count > held;
        rows = plus(rows, count);
        total = plus(total, held);
    }

    /** What a block holds, or a little more than the most if it is more. */
    private static long held(byte[] block, String codec, long most) throws IOException {
        if ("null".equals(codec)) {
            return block.length;
        }
        if ("snappy".equals(codec)) {  // four bytes of a checksum come last
            return Snappy.uncompressedLength(block, 0, Math.max(0, block.length - 4));
        }
        InputStream text = decompressed(new ByteArrayInputStream(block), codec);
        byte[] chunk = new byte[CHUNK];
        long held = 0;
        for (int count = text.read(chunk); count >= 0 && held <= most; count = text.read(chunk)) {
            held += count;
        }
        return held;
    }

    private static InputStream decompressed(InputStream block, String codec) throws IOException {
        if ("deflate".equals(codec)) {
            return new InflaterInputStream(block, new Inflater(true));
        }
        if ("bzip2".equals(codec)) {
            return new BZip2CompressorInputStream(block);
        }
        if ("zstandard".equals(codec)) {
            return new ZstdInputStream(block);
        }
        if ("xz".equals(codec)) {
            return new XZInputStream(block, 1 << 16);
        }
        throw new IOException("its compression " + codec + " is not known");
    }

    private void part(long stored, long held) {
        if (held > most || held > freely && held > times * stored) {
            largest = held;
        }
    }

    private boolean fits() {
        return largest == 0 && !crowded;
    }

    private static Map metadata(InputStream file) throws IOException {
        Map found = new HashMap();
        long length = 0;
        for (long left = varint(file, file.read()); left != 0; left = varint(file, file.read())) {
            if (left < 0) {  // then its size in bytes follows
                left = -left;
                varint(file, file.read());
            }
            for (; left > 0; left--) {
                byte[] key = entry(file);
                byte[] value = entry(file);
                length += key.length + value.length + 1;
                if (length > LONGEST_ENTRY) {
                    throw new IOException("its header is too long");
                }
                found.put(new String(key, StandardCharsets.UTF_8), value);
            }
        }
        return found;
    }

    private static byte[] entry(InputStream file) throws IOException {
        long length = varint(file, file.read());
        if (length < 0 || length > LONGEST_ENTRY) {
            throw new IOException("its header has an entry that is too long");
        }
        return bytes(file, (int) length);
    }

    /** The bytes that come next. Memory is taken as they are found, because their number may be a lie. */
    private static byte[] bytes(InputStream file, int length) throws IOException {
        byte[] found = file.readNBytes(length);
        if (found.length < length) {
            throw new EOFException("it ends too early");
        }
        return found;
    }

    /** A number as Avro writes it, which begins with this byte. */
    private static long varint(InputStream file, int first) throws IOException {
        long number = 0;
        int next = first;
        for (int shift = 0; shift < 64; shift += 7) {
            if (next < 0) {
                throw new EOFException("it ends too early");
            }
            number |= (next & 0x7FL) << shift;
            if ((next & 0x80) == 0) {
                return (number >>> 1) ^ -(number & 1);
            }
            next = file.read();
        }
        throw new IOException("a number is too long");
    }

    private static long product(long one, long other) {
        return other > Long.MAX_VALUE / one ? Long.MAX_VALUE : one * other;
    }

    private static long plus(long one, long other) {
        long sum = one + other;
        return sum < 0 ? Long.MAX_VALUE : sum;
    }
}
