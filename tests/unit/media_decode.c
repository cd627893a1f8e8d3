/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "unit/unit.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/str.h"
#include "media/child/child.h"
#include "media/media.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef INGLE_JPEG
#include <jpeglib.h>
#endif
#ifdef INGLE_WEBP
#include <webp/encode.h>
#endif

static struct media_decoder *decoder;

static int open_decoder(void **state)
{
    (void)state;
    return media_decoder_create(&decoder, NULL) != INGLE_OK;
}

static int close_decoder(void **state)
{
    (void)state;
    media_decoder_free(decoder);
    return 0;
}

/* Decodes and empties b. */
static ingle_status decode(struct str *b, struct media_data *out, struct err *err)
{
    const ingle_status s = media_decode(decoder, b->at, b->n, "message 2, part 1", out, err);
    str_clear(b);
    return s;
}

static void assert_refused_(struct str *b, const char *said, const char *more, int line)
{
    struct media_data d;
    struct err err = {0};
    const ingle_status s = decode(b, &d, &err);
    if (s != INGLE_ARG || strncmp(err.msg, "message 2, part 1: ", 19) != 0 ||
        !strstr(err.msg, said) || !strstr(err.msg, more))
        fail_msg("line %d: status %d, '%s' has not '%s' and '%s'", line, s, err.msg, said, more);
}
#define assert_refused(b, said, more) assert_refused_(b, said, more, __LINE__)

/* The picture of b has this size and, unless it is NULL, these bytes. */
static void assert_picture_(struct str *b, int w, int h, const uint8_t *rgb, int line)
{
    struct media_data d;
    struct err err = {0};
    if (decode(b, &d, &err) != INGLE_OK)
        fail_msg("line %d: %s", line, err.msg);
    if (d.picture.width != w || d.picture.height != h)
        fail_msg("line %d: %d x %d", line, d.picture.width, d.picture.height);
    for (int i = 0; rgb && i < w * h * 3; i++)
        if (d.picture.rgb[i] != rgb[i])
            fail_msg("line %d: byte %d is %d, not %d", line, i, d.picture.rgb[i], rgb[i]);
    media_data_release(&d);
}
#define assert_picture(b, w, h, rgb) assert_picture_(b, w, h, rgb, __LINE__)

static void be(struct str *b, uint32_t v, int n)
{
    for (int i = n - 1; i >= 0; i--)
        str_addc(b, (char)(v >> (8 * i)));
}

static void le(struct str *b, uint32_t v, int n)
{
    for (int i = 0; i < n; i++)
        str_addc(b, (char)(v >> (8 * i)));
}

/* ---- PNG, with data that are stored as they are ---- */

static uint32_t crc(const char *at, size_t n)
{
    uint32_t c = ~0U;
    for (size_t i = 0; i < n; i++) {
        c ^= (uint8_t)at[i];
        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0xEDB88320U : c >> 1;
    }
    return ~c;
}

static void chunk(struct str *b, const char *type, const void *data, size_t n)
{
    be(b, (uint32_t)n, 4);
    const size_t at = b->n;
    str_add(b, type, 4);
    str_add(b, data, n);
    be(b, crc(b->at + at, n + 4), 4);
}

static void zlib(struct str *out, const uint8_t *at, size_t n)
{
    uint32_t a = 1, s = 0;
    for (size_t i = 0; i < n; i++) {
        a = (a + at[i]) % 65521;
        s = (s + a) % 65521;
    }
    str_add(out, "\x78\x01", 2);
    do {
        const size_t part = n < 65535 ? n : 65535;
        str_addc(out, part == n);
        le(out, (uint32_t)part, 2);
        le(out, ~(uint32_t)part & 0xFFFF, 2);
        str_add(out, (const char *)at, part);
        at += part;
        n -= part;
    } while (n);
    be(out, s << 16 | a, 4);
}

static void png_head(struct str *b, uint32_t w, uint32_t h, int depth, int kind)
{
    struct str head;
    str_init(&head);
    be(&head, w, 4);
    be(&head, h, 4);
    str_addc(&head, (char)depth);
    str_addc(&head, (char)kind);
    str_add(&head, "\0\0\0", 3);
    str_add(b, "\x89PNG\r\n\x1A\n", 8);
    chunk(b, "IHDR", head.at, head.n);
    str_release(&head);
}

/* rows: [h][1 + bytes of a row], each with its filter in front */
static void png_tail(struct str *b, const uint8_t *rows, size_t n)
{
    struct str z;
    str_init(&z);
    zlib(&z, rows, n);
    chunk(b, "IDAT", z.at, z.n);
    chunk(b, "IEND", "", 0);
    str_release(&z);
}

/* A small RGB picture: pixel i is (10 i, 10 i + 1, 10 i + 2). */
enum { W = 3, H = 2 };
static void numbered(uint8_t rgb[W * H * 3])
{
    for (int i = 0; i < W * H; i++)
        for (int c = 0; c < 3; c++)
            rgb[i * 3 + c] = (uint8_t)(10 * i + c);
}

static void add_rows(const uint8_t *rgb, uint8_t rows[H * (1 + W * 3)])
{
    for (int y = 0; y < H; y++) {
        rows[y * (1 + W * 3)] = 0;
        memcpy(rows + y * (1 + W * 3) + 1, rgb + y * W * 3, W * 3);
    }
}

static void png_rgb(struct str *b, const uint8_t *rgb, const char *exif, size_t n_exif)
{
    uint8_t rows[H * (1 + W * 3)];
    add_rows(rgb, rows);
    png_head(b, W, H, 8, 2);
    if (exif)
        chunk(b, "eXIf", exif, n_exif);
    png_tail(b, rows, sizeof rows);
}

static void png_kinds_become_rgb(void **state)
{
    (void)state;
    struct str b;
    str_init(&b);
    const uint8_t two[] = {7, 7, 7, 200, 200, 200};
    /* grey of 8 and 16 bits (the high byte), of 1 bit */
    png_head(&b, 2, 1, 8, 0);
    png_tail(&b, (const uint8_t[]){0, 7, 200}, 3);
    assert_picture(&b, 2, 1, two);
    png_head(&b, 2, 1, 16, 0);
    png_tail(&b, (const uint8_t[]){0, 7, 255, 200, 128}, 5);
    assert_picture(&b, 2, 1, two);
    png_head(&b, 2, 1, 1, 0);
    png_tail(&b, (const uint8_t[]){0, 0x40}, 2);
    assert_picture(&b, 2, 1, ((const uint8_t[]){0, 0, 0, 255, 255, 255}));
    /* RGB of 16 bits */
    png_head(&b, 1, 1, 16, 2);
    png_tail(&b, (const uint8_t[]){0, 1, 255, 2, 255, 3, 255}, 7);
    assert_picture(&b, 1, 1, ((const uint8_t[]){1, 2, 3}));
    /* a palette with a transparent colour, on white */
    png_head(&b, 2, 1, 8, 3);
    chunk(&b, "PLTE", "\1\2\3\4\5\6", 6);
    chunk(&b, "tRNS", "\0", 1);
    png_tail(&b, (const uint8_t[]){0, 0, 1}, 3);
    assert_picture(&b, 2, 1, ((const uint8_t[]){255, 255, 255, 4, 5, 6}));
    /* grey with a transparent value */
    png_head(&b, 2, 1, 8, 0);
    chunk(&b, "tRNS", "\0\7", 2);
    png_tail(&b, (const uint8_t[]){0, 7, 200}, 3);
    assert_picture(&b, 2, 1, ((const uint8_t[]){255, 255, 255, 200, 200, 200}));
    /* alpha: (c * a + 255 * (255 - a) + 127) / 255 */
    png_head(&b, 2, 1, 8, 6);
    png_tail(&b, (const uint8_t[]){0, 0, 100, 255, 128, 9, 9, 9, 255}, 9);
    assert_picture(&b, 2, 1, ((const uint8_t[]){127, 177, 255, 9, 9, 9}));
    png_head(&b, 1, 1, 8, 4);
    png_tail(&b, (const uint8_t[]){0, 50, 0}, 3);
    assert_picture(&b, 1, 1, ((const uint8_t[]){255, 255, 255}));
    str_release(&b);
}

/* The formula, for all pairs. */
static void alpha_is_put_on_white(void **state)
{
    (void)state;
    static uint8_t at[65536 * 4];
    for (int i = 0; i < 65536; i++)
        memcpy(at + 4 * i, (uint8_t[]){(uint8_t)i, 0, 255, (uint8_t)(i >> 8)}, 4);
    media_child_on_white(at, 65536);
    for (int i = 0; i < 65536; i++) {
        const int c = i & 255, a = i >> 8;
        assert_int_equal(at[3 * i], (c * a + 255 * (255 - a) + 127) / 255);
        assert_int_equal(at[3 * i + 1], (255 * (255 - a) + 127) / 255);
        assert_int_equal(at[3 * i + 2], 255);
    }
}

/* ---- orientation ---- */

static void exif(struct str *b, bool big, unsigned type, uint32_t count, uint32_t value)
{
    void (*const add)(struct str *, uint32_t, int) = big ? be : le;
    str_add(b, big ? "MM\0*" : "II*\0", 4);
    add(b, 8, 4);
    add(b, 2, 2); /* entries */
    add(b, 0x0100, 2), add(b, 4, 2), add(b, 1, 4), add(b, 9, 4);
    add(b, 0x0112, 2), add(b, type, 2), add(b, count, 4);
    add(b, value, type == 3 ? 2 : 4);
    if (type == 3)
        add(b, 0, 2);
    add(b, 8, 4); /* the next directory: this one again */
}

/* What each orientation makes of a 2 x 3 picture "abc / def". */
static void pictures_stand_upright(void **state)
{
    (void)state;
    static const char *const want[] = {"abcdef", "cbafed", "fedcba", "defabc",
                                       "adbecf", "daebfc", "fcebda", "cfbead"};
    struct str b, e;
    uint8_t rgb[W * H * 3], turned[W * H * 3];
    str_init(&b);
    str_init(&e);
    numbered(rgb);
    for (unsigned o = 0; o <= 9; o++) {
        const unsigned i = o >= 1 && o <= 8 ? o - 1 : 0;
        for (int k = 0; k < W * H; k++)
            memcpy(turned + 3 * k, rgb + 3 * (want[i][k] - 'a'), 3);
        exif(&e, o & 1, 3, 1, o);
        png_rgb(&b, rgb, e.at, e.n);
        assert_picture(&b, i >= 4 ? H : W, i >= 4 ? W : H, turned);
        str_clear(&e);
    }
    str_release(&b);
    str_release(&e);
}

static void a_broken_exif_block_turns_nothing(void **state)
{
    (void)state;
    struct str e;
    str_init(&e);
    exif(&e, true, 3, 1, 6);
    for (size_t n = 0; n < e.n; n++) { /* cut anywhere: the tag's value ends at byte 32 */
        assert_int_equal(media_child_orientation((const uint8_t *)e.at, n), n < 32 ? 1 : 6);
    }
    str_clear(&e);
    str_add(&e, "Exif\0\0", 6);
    exif(&e, false, 4, 1, 8); /* a LONG */
    assert_int_equal(media_child_orientation((const uint8_t *)e.at, e.n), 8);
    str_clear(&e);
    exif(&e, false, 3, 2, 8);
    assert_int_equal(media_child_orientation((const uint8_t *)e.at, e.n), 1);
    str_clear(&e);
    exif(&e, false, 5, 1, 8);
    assert_int_equal(media_child_orientation((const uint8_t *)e.at, e.n), 1);
    const uint8_t far[] = "II*\0\xFF\xFF\xFF\xFF", itself[] = "II*\0\0\0\0\0";
    assert_int_equal(media_child_orientation(far, 8), 1);
    assert_int_equal(media_child_orientation(itself, 8), 1);
    str_release(&e);
}

/* ---- PNG that lies ---- */

static void broken_png_is_refused(void **state)
{
    (void)state;
    struct str b;
    uint8_t rgb[W * H * 3];
    str_init(&b);
    numbered(rgb);
    for (size_t cut = 8; cut < 80; cut += 7) {
        png_rgb(&b, rgb, NULL, 0);
        assert_true(b.n > cut);
        b.n = cut;
        assert_refused(&b, "PNG: the file is cut short", "");
    }
    png_head(&b, 20000, 20000, 8, 2); /* 300 bytes that unpack to 1.2 GB */
    png_tail(&b, (const uint8_t[200]){0}, 200);
    assert_refused(&b, "20000 x 20000", "64 megapixels");
    png_head(&b, 20001, 1, 8, 2);
    assert_refused(&b, "20001 x 1", "20000");
    png_head(&b, 1, 20001, 8, 2);
    assert_refused(&b, "1 x 20001", "20000");
    png_head(&b, 0, 1, 8, 2);
    assert_refused(&b, "0 x 1", "1 or more");
    png_head(&b, 0xFFFFFFFF, 0xFFFFFFFF, 8, 2);
    assert_refused(&b, "4294967295", "20000");
    png_head(&b, 8000, 8001, 8, 2); /* one row beyond 64 megapixels */
    assert_refused(&b, "8000 x 8001", "64 megapixels");
    png_rgb(&b, rgb, NULL, 0);
    b.at[45] ^= 1; /* the length of a stored block */
    assert_refused(&b, "PNG: ", "");
    png_rgb(&b, rgb, NULL, 0);
    b.at[20] ^= 4; /* the width: its checksum is wrong */
    assert_refused(&b, "PNG: ", "");
    png_head(&b, 2, 1, 3, 2); /* a depth that there is not */
    png_tail(&b, (const uint8_t[]){0, 1, 2}, 3);
    assert_refused(&b, "PNG: ", "");
    png_head(&b, 4, 4, 8, 2); /* fewer bytes than pixels */
    png_tail(&b, (const uint8_t[]){0, 1, 2}, 3);
    assert_refused(&b, "PNG: ", "");
    png_head(&b, 2, 1, 8, 3); /* no palette */
    png_tail(&b, (const uint8_t[]){0, 0, 1}, 3);
    assert_refused(&b, "PNG: ", "");
    png_head(&b, 1, 20000, 8, 0); /* a line of the greatest length is one */
    static const uint8_t zero[40000];
    png_tail(&b, zero, sizeof zero);
    assert_picture(&b, 1, 20000, NULL);
    str_release(&b);
}

static void other_formats_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *name;
    } file[] = {{"%PDF-1.7", 8, "PDF"},
                {"<svg xmlns='x'/>", 16, "SVG"},
                {"  <?xml version='1.0'?><svg/>", 29, "SVG"},
                {"\0\0\0\x18"
                 "ftypheic",
                 12, "HEIC"},
                {"\0\0\0\x18"
                 "ftypavif",
                 12, "AVIF"},
                {"PK\3\4....", 8, "ZIP"},
                {"BM......", 8, "BMP"},
                {"II*\0....", 8, "TIFF"},
                {"ID3\4....", 8, "MP3"},
                {"fLaC....", 8, "FLAC"},
                {"OggS....", 8, "Ogg"},
                {"RIFF\0\0\0\0AVI ", 12, "AVI"},
                {"hello", 5, "68 65 6c 6c 6f"},
                {"\xFF", 1, "ff"},
                {"RIFF", 4, "52 49 46 46"}};
    struct str b;
    str_init(&b);
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        str_add(&b, file[i].bytes, file[i].n);
        assert_refused(&b, "format", file[i].name);
    }
    assert_refused(&b, "empty", "");
    str_release(&b);
}

/* ---- GIF: 2 x 2 pixels of indices 0 1 1 0 with codes of 3 bits ---- */

static void gif_head(struct str *b, unsigned w, unsigned h)
{
    str_add(b, "GIF89a", 6);
    le(b, w, 2);
    le(b, h, 2);
    str_add(b, "\x80\0\0", 3); /* two colours */
    str_add(b, "\1\2\3\4\5\6", 6);
}

static void gif_frame(struct str *b, unsigned left, unsigned top, unsigned w, unsigned h,
                      unsigned flags)
{
    str_addc(b, ',');
    le(b, left, 2);
    le(b, top, 2);
    le(b, w, 2);
    le(b, h, 2);
    str_addc(b, (char)flags);
    str_addc(b, 2);
}

/* Clear is 4, end is 5.  The first code after a clear defines nothing, so the table is full of
 * codes of 3 bits after the third: those from the fifth on have 4. */

static void gif_codes(struct str *b, const int *code, int n)
{
    uint32_t bits = 0;
    int have = 0;
    struct str data;
    str_init(&data);
    for (int i = 0; i < n; i++) {
        bits |= (uint32_t)code[i] << have;
        for (have += i < 4 ? 3 : 4; have >= 8; have -= 8, bits >>= 8)
            str_addc(&data, (char)bits);
    }
    str_addc(&data, (char)bits);
    str_addc(b, (char)data.n);
    str_add(b, data.at, data.n);
    str_addc(b, 0);
    str_release(&data);
}

static void the_first_frame_of_a_gif_is_read(void **state)
{
    (void)state;
    struct str b;
    str_init(&b);
    gif_head(&b, 2, 2);
    gif_frame(&b, 0, 0, 2, 2, 0);
    gif_codes(&b, (const int[]){4, 0, 1, 1, 0, 5}, 6);
    str_addc(&b, ';');
    assert_picture(&b, 2, 2, ((const uint8_t[]){1, 2, 3, 4, 5, 6, 4, 5, 6, 1, 2, 3}));
    /* one pixel of a canvas of three, and index 0 is transparent: the rest is white */
    gif_head(&b, 3, 1);
    str_add(&b, "!\xF9\4\1\0\0\0\0", 8);
    gif_frame(&b, 1, 0, 1, 1, 0);
    gif_codes(&b, (const int[]){4, 1, 5}, 3);
    assert_picture(&b, 3, 1, ((const uint8_t[]){255, 255, 255, 4, 5, 6, 255, 255, 255}));
    /* interlaced: rows 0, 2, 1 of a picture of three */
    gif_head(&b, 1, 3);
    gif_frame(&b, 0, 0, 1, 3, 0x40);
    gif_codes(&b, (const int[]){4, 0, 1, 0, 5}, 5);
    assert_picture(&b, 1, 3, ((const uint8_t[]){1, 2, 3, 1, 2, 3, 4, 5, 6}));
    /* a code that is being defined: 0 0 0 */
    gif_head(&b, 3, 1);
    gif_frame(&b, 0, 0, 3, 1, 0);
    gif_codes(&b, (const int[]){4, 0, 6, 5}, 4);
    assert_picture(&b, 3, 1, ((const uint8_t[]){1, 2, 3, 1, 2, 3, 1, 2, 3}));
    /* a frame that is larger than the canvas */
    gif_head(&b, 1, 1);
    gif_frame(&b, 1, 1, 1, 1, 0);
    gif_codes(&b, (const int[]){4, 1, 5}, 3);
    assert_picture(&b, 2, 2, NULL);
    str_release(&b);
}

static void broken_gif_is_refused(void **state)
{
    (void)state;
    struct str b;
    str_init(&b);
    for (size_t n = 6; n < 33; n++) {
        gif_head(&b, 2, 2);
        gif_frame(&b, 0, 0, 2, 2, 0);
        gif_codes(&b, (const int[]){4, 0, 1, 1, 0, 5}, 6);
        b.n = n < b.n ? n : b.n;
        if (n < 31)
            assert_refused(&b, "GIF: the file is cut short", "");
        str_clear(&b);
    }
    gif_head(&b, 2, 2);
    gif_frame(&b, 0, 0, 2, 2, 0);
    gif_codes(&b, (const int[]){4, 0, 1, 5}, 4);
    assert_refused(&b, "GIF: its data end after 2 of 4 pixels", "");
    gif_head(&b, 2, 2);
    gif_frame(&b, 0, 0, 2, 2, 0);
    gif_codes(&b, (const int[]){4, 7}, 2);
    assert_refused(&b, "GIF: code 7", "");
    gif_head(&b, 2, 2);
    gif_frame(&b, 0, 0, 0, 2, 0);
    gif_codes(&b, (const int[]){4, 5}, 2);
    assert_refused(&b, "GIF: ", "1 or more");
    gif_head(&b, 65535, 65535);
    gif_frame(&b, 0, 0, 2, 2, 0);
    assert_refused(&b, "65535", "20000");
    gif_head(&b, 2, 2);
    str_addc(&b, ';');
    assert_refused(&b, "GIF: it has no picture", "");
    str_release(&b);
}

/* ---- JPEG ---- */

#ifdef INGLE_JPEG
struct jpeg_kind {
    int n_in, space, out_space; /* of pixels given, and of the file */
    bool progressive, arithmetic;
};

/* A ramp; quality 95. */
static void jpeg(struct str *b, int w, int h, struct jpeg_kind k)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr errors;
    unsigned char *out = NULL;
    unsigned long n = 0;
    static JSAMPLE row[256 * 4];
    JSAMPROW at = row;
    c.err = jpeg_std_error(&errors);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &out, &n);
    c.image_width = (JDIMENSION)w;
    c.image_height = (JDIMENSION)h;
    c.input_components = k.n_in;
    c.in_color_space = (J_COLOR_SPACE)k.space;
    jpeg_set_defaults(&c);
    jpeg_set_colorspace(&c, (J_COLOR_SPACE)k.out_space);
    jpeg_set_quality(&c, 95, TRUE);
    c.arith_code = k.arithmetic;
    if (k.progressive)
        jpeg_simple_progression(&c);
    jpeg_start_compress(&c, TRUE);
    for (int y = 0; y < h; y++) {
        for (int i = 0; i < w * k.n_in; i++)
            row[i] = (JSAMPLE)(i / k.n_in * 3 + y * 2 + i % k.n_in * 20);
        (void)jpeg_write_scanlines(&c, &at, 1);
    }
    jpeg_finish_compress(&c);
    str_add(b, (char *)out, n);
    jpeg_destroy_compress(&c);
    free(out);
}

static const struct jpeg_kind plain = {3, JCS_RGB, JCS_YCbCr, false, false};

static void jpeg_kinds_become_rgb(void **state)
{
    (void)state;
    struct str b;
    struct media_data d, e;
    str_init(&b);
    jpeg(&b, 40, 20, (struct jpeg_kind){1, JCS_GRAYSCALE, JCS_GRAYSCALE, false, false});
    assert_int_equal(decode(&b, &d, NULL), INGLE_OK);
    for (int i = 0; i < 40 * 20 * 3; i += 3)
        assert_true(d.picture.rgb[i] == d.picture.rgb[i + 1] &&
                    d.picture.rgb[i] == d.picture.rgb[i + 2]);
    media_data_release(&d);
    /* progressive: the same coefficients, so the same bytes */
    jpeg(&b, 40, 20, plain);
    assert_int_equal(decode(&b, &d, NULL), INGLE_OK);
    jpeg(&b, 40, 20, (struct jpeg_kind){3, JCS_RGB, JCS_YCbCr, true, false});
    assert_int_equal(decode(&b, &e, NULL), INGLE_OK);
    assert_memory_equal(d.picture.rgb, e.picture.rgb, 40 * 20 * 3);
    media_data_release(&d);
    media_data_release(&e);
    /* inks, inverted as all files have them: about 255 - (255 - c) of what black leaves */
    jpeg(&b, 40, 20, (struct jpeg_kind){4, JCS_CMYK, JCS_CMYK, false, false});
    assert_int_equal(decode(&b, &d, NULL), INGLE_OK);
    for (int y = 0; y < 20; y++)
        for (int x = 0; x < 40; x++)
            for (int c = 0; c < 3; c++) {
                const int v = x * 3 + y * 2, k = (v + 60) & 255, ink = (v + c * 20) & 255;
                const int want = k - (255 - ink) * k / 255;
                if (v + 60 < 240) /* beyond that the ramp wraps */
                    assert_in_range(d.picture.rgb[(y * 40 + x) * 3 + c] + 100, want + 92,
                                    want + 108);
            }
    media_data_release(&d);
    jpeg(&b, 40, 20, (struct jpeg_kind){4, JCS_CMYK, JCS_YCCK, false, false});
    assert_picture(&b, 40, 20, NULL);
    str_release(&b);
}

static size_t find(const struct str *b, int marker)
{
    for (size_t i = 0; i + 1 < b->n; i++)
        if ((uint8_t)b->at[i] == 0xFF && (uint8_t)b->at[i + 1] == marker)
            return i;
    fail();
    return 0;
}

static void broken_jpeg_is_refused(void **state)
{
    (void)state;
    struct str b, e;
    str_init(&b);
    str_init(&e);
    jpeg(&b, 200, 100, plain);
    const size_t n = b.n;
    for (size_t cut = 4; cut < n; cut += n / 9) {
        str_clear(&b);
        jpeg(&b, 200, 100, plain);
        b.n = cut;
        assert_refused(&b, "JPEG: ", "");
    }
    jpeg(&b, 200, 100, plain);
    b.n -= 40;
    assert_refused(&b, "JPEG: the file is cut short", "");
    jpeg(&b, 40, 20, (struct jpeg_kind){3, JCS_RGB, JCS_YCbCr, false, true});
    assert_refused(&b, "JPEG: arithmetic coding is not supported", "");
    jpeg(&b, 40, 20, plain);
    size_t at = find(&b, 0xC0);
    b.at[at + 4] = 12; /* bits */
    assert_refused(&b, "JPEG: ", "12");
    jpeg(&b, 40, 20, plain);
    at = find(&b, 0xC0);
    memcpy(b.at + at + 5, "\x4E\x21\x00\x01", 4);
    assert_refused(&b, "1 x 20001", "20000");
    jpeg(&b, 40, 20, plain);
    at = find(&b, 0xC0);
    memcpy(b.at + at + 5, "\x4E\x20\x4E\x20", 4);
    assert_refused(&b, "20000 x 20000", "64 megapixels");
    static const int marker[] = {0xDB, 0xC4, 0xC0, 0xDA};
    for (size_t i = 0; i < 4; i++)
        for (int length = 0; length < 4; length++) {
            jpeg(&b, 40, 20, plain);
            at = find(&b, marker[i]);
            memcpy(b.at + at + 2, (char[]){0, (char)length}, 2);
            assert_refused(&b, "JPEG: ", "");
        }
    static const char *const small[] = {"\xFF\xE1\0\0", "\xFF\xFE\0\1", "\xFF\xEC\0\1"};
    for (size_t i = 0; i < 3; i++) {
        struct str more;
        str_init(&more);
        jpeg(&b, 40, 20, plain);
        str_add(&more, b.at, 2);
        str_add(&more, small[i], 4);
        str_add(&more, b.at + 2, b.n - 2);
        assert_refused(&more, "JPEG: marker ff", "the least is 2");
        str_release(&more);
    }
    /* a whole one with an orientation */
    exif(&e, true, 3, 1, 6);
    jpeg(&b, 40, 20, plain);
    struct str f;
    str_init(&f);
    str_add(&f, b.at, 2);
    str_add(&f, "\xFF\xE1", 2);
    be(&f, (uint32_t)(e.n + 8), 2);
    str_add(&f, "Exif\0\0", 6);
    str_add(&f, e.at, e.n);
    str_add(&f, b.at + 2, b.n - 2);
    assert_picture(&f, 20, 40, NULL);
    str_release(&f);
    str_release(&b);
    str_release(&e);
}

/* 10,000 scans of a few bytes: each would be a pass over the picture. */
static void a_jpeg_of_many_scans_is_refused(void **state)
{
    (void)state;
    struct str b, f;
    str_init(&b);
    str_init(&f);
    jpeg(&b, 64, 64, (struct jpeg_kind){3, JCS_RGB, JCS_YCbCr, true, false});
    /* the last scan again and again */
    size_t last = 0;
    for (size_t i = 0; i + 1 < b.n; i++)
        if ((uint8_t)b.at[i] == 0xFF && (uint8_t)b.at[i + 1] == 0xDA)
            last = i;
    str_add(&f, b.at, b.n - 2);
    for (int i = 0; i < 10000; i++)
        str_add(&f, b.at + last, b.n - 2 - last);
    str_add(&f, "\xFF\xD9", 2);
    assert_refused(&f, "JPEG: it has more than 100 scans", "");
    str_release(&b);
    str_release(&f);
}
#endif

/* ---- WebP ---- */

#ifdef INGLE_WEBP
static void webp_has_the_same_pixels_as_png(void **state)
{
    (void)state;
    struct str b, e;
    uint8_t rgb[W * H * 3], *out = NULL;
    str_init(&b);
    str_init(&e);
    numbered(rgb);
    const size_t n = WebPEncodeLosslessRGB(rgb, W, H, W * 3, &out);
    str_add(&b, (char *)out, n);
    assert_picture(&b, W, H, rgb);
    for (size_t cut = 12; cut + 2 < n; cut += 3) {
        str_add(&b, (char *)out, cut);
        assert_refused(&b, "WebP: ", "");
    }
    /* the container with flags: an EXIF chunk after the picture, or an animation */
    for (int animated = 0; animated < 2; animated++) {
        exif(&e, false, 3, 1, 3);
        str_add(&b, "RIFF", 4);
        le(&b, (uint32_t)(4 + 18 + n - 12 + 8 + e.n), 4);
        str_add(&b, "WEBPVP8X", 8);
        le(&b, 10, 4);
        le(&b, animated ? 2 : 8, 4);
        le(&b, W - 1, 3);
        le(&b, H - 1, 3);
        str_add(&b, (char *)out + 12, n - 12);
        str_add(&b, "EXIF", 4);
        le(&b, (uint32_t)e.n, 4);
        str_add(&b, e.at, e.n);
        str_clear(&e);
        uint8_t turned[W * H * 3];
        for (int k = 0; k < W * H; k++)
            memcpy(turned + 3 * k, rgb + 3 * (W * H - 1 - k), 3);
        if (animated)
            assert_refused(&b, "WebP: it is an animation", "");
        else
            assert_picture(&b, W, H, turned);
    }
    WebPFree(out);
    str_release(&b);
    str_release(&e);
}
#endif

/* ---- WAV ---- */

struct wav {
    unsigned code, channels, bits;
    uint32_t rate;
    size_t n; /* frames */
};

/* A tone of 440 Hz at half of the range; channel c has 1 / (c + 1) of it. */
static void wav(struct str *b, struct wav w)
{
    const unsigned bytes = w.bits / 8, frame = bytes * w.channels;
    const size_t n = w.n * frame;
    str_add(b, "RIFF", 4);
    le(b, (uint32_t)(36 + n), 4);
    str_add(b, "WAVEfmt ", 8);
    le(b, 16, 4);
    le(b, w.code, 2);
    le(b, w.channels, 2);
    le(b, w.rate, 4);
    le(b, w.rate * frame, 4);
    le(b, frame, 2);
    le(b, w.bits, 2);
    str_add(b, "data", 4);
    le(b, (uint32_t)n, 4);
    for (size_t i = 0; i < w.n; i++)
        for (unsigned c = 0; c < w.channels; c++) {
            const double x = 0.5 * sin(2 * acos(-1.0) * 440 * (double)i / w.rate) / (c + 1);
            if (w.code == 3 && w.bits == 64) {
                uint64_t v;
                memcpy(&v, &x, 8);
                le(b, (uint32_t)v, 4);
                le(b, (uint32_t)(v >> 32), 4);
            } else if (w.code == 3) {
                const float f = (float)x;
                uint32_t v;
                memcpy(&v, &f, 4);
                le(b, v, 4);
            } else if (w.bits == 8)
                str_addc(b, (char)(uint8_t)(128 + lrint(x * 127)));
            else
                le(b, (uint32_t)(int32_t)lrint(x * (double)(1LL << (w.bits - 1))), (int)bytes);
        }
}

/* The largest distance from the tone, but for the ends, where a filter reaches beyond the sound. */
static double off(const struct media_sound *s, double gain, size_t edge)
{
    double worst = 0;
    for (size_t i = edge; i + edge < s->n; i++)
        worst = fmax(worst, fabs((double)s->samples[i] -
                                 gain * 0.5 * sin(2 * acos(-1.0) * 440 * (double)i / 16000)));
    return worst;
}

static void sounds_of_every_kind_are_the_same_tone(void **state)
{
    (void)state;
    /* off: half a step of the kind; a change of rate: what the filter lets through and its table */
    static const struct {
        struct wav w;
        double off;
    } kind[] = {{{1, 1, 8, 16000, 1600}, 0.5 / 127 + 0.01},
                {{1, 1, 16, 16000, 1600}, 2e-5},
                {{1, 1, 24, 16000, 1600}, 1e-6},
                {{1, 1, 32, 16000, 1600}, 1e-6},
                {{3, 1, 32, 16000, 1600}, 1e-6},
                {{3, 1, 64, 16000, 1600}, 1e-6},
                {{1, 2, 16, 16000, 1600}, 3e-5},
                {{1, 6, 16, 96000, 9600}, 1e-4},
                {{1, 1, 16, 48000, 4800}, 1e-4},
                {{1, 1, 16, 44100, 4410}, 1e-4},
                {{3, 1, 32, 8000, 800}, 1e-4},
                {{3, 1, 32, 11025, 1103}, 1e-4},
                {{3, 1, 32, 15999, 1600}, 1e-4}};
    struct str b;
    str_init(&b);
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        struct media_data d;
        struct err err = {0};
        double gain = 0;
        for (unsigned c = 0; c < kind[i].w.channels; c++)
            gain += 1.0 / (c + 1) / kind[i].w.channels;
        wav(&b, kind[i].w);
        assert_int_equal(decode(&b, &d, &err), INGLE_OK);
        assert_in_range(d.sound.n, 1599, 1601);
        const double far = off(&d.sound, gain, kind[i].w.rate == 16000 ? 0 : 100);
        if (far > kind[i].off)
            fail_msg("kind %zu is off by %g", i, far);
        media_data_release(&d);
    }
    str_release(&b);
}

/* What is above half of the new rate must not come back as another tone. */
static void high_tones_are_cut_off(void **state)
{
    (void)state;
    enum { N = 9600 };
    static float in[N], out[N];
    double sum = 0;
    for (int i = 0; i < N; i++)
        in[i] = (float)sin(2 * acos(-1.0) * 9000 * i / 48000.0);
    assert_int_equal(media_child_resample(in, N, 48000, out, NULL), INGLE_OK);
    for (int i = 200; i < N / 3 - 200; i++)
        sum += (double)out[i] * (double)out[i];
    assert_true(sqrt(sum / (N / 3 - 400)) < 1e-3); /* 60 dB below */
}

static void set(struct str *b, size_t at, uint32_t v, int n)
{
    for (int i = 0; i < n; i++)
        b->at[at + (size_t)i] = (char)(v >> (8 * i));
}

static void broken_sounds_are_refused(void **state)
{
    (void)state;
    const struct wav good = {1, 1, 16, 16000, 1600};
    struct str b;
    str_init(&b);
    wav(&b, (struct wav){1, 1, 16, 16000, 0});
    assert_refused(&b, "WAV: the sound is empty", "");
    wav(&b, (struct wav){1, 1, 16, 16000, 1});
    assert_refused(&b, "1 samples", "161");
    wav(&b, (struct wav){1, 1, 16, 16000, 160});
    assert_refused(&b, "160 samples", "161");
    wav(&b, (struct wav){1, 1, 16, 48000, 480});
    assert_refused(&b, "160 samples", "161");
    wav(&b, (struct wav){1, 1, 8, 8000, 31 * 8000});
    assert_refused(&b, "31.00 seconds", "the limit is 30");
    static const struct {
        size_t at;
        uint32_t value;
        int n;
        const char *said;
    } change[] = {{4, 1 << 30, 4, "cut short"},
                  {40, 0xFFFFFFFF, 4, "4294967295"},
                  {40, 3201, 4, "3201"},
                  {16, 0xFFFFFFF0, 4, "4294967280"},
                  {16, 2, 4, "WAV: "},
                  {20, 7, 2, "format 7"},
                  {20, 2, 2, "format 2"},
                  {22, 0, 2, "0 channels"},
                  {22, 65, 2, "65 channels"},
                  {24, 0, 4, "0 samples a second"},
                  {24, 0xFFFFFFFF, 4, "384000"},
                  {34, 12, 2, "12 bits"},
                  {32, 3, 2, "a block of 3 bytes"},
                  {36, 0x20202020, 4, "no chunk 'data'"},
                  {12, 0x20202020, 4, "no chunk 'fmt '"}};
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        wav(&b, good);
        set(&b, change[i].at, change[i].value, change[i].n);
        assert_refused(&b, "WAV: ", change[i].said);
    }
    for (size_t n = 12; n < 44; n += 3) {
        wav(&b, good);
        b.n = n;
        assert_refused(&b, "WAV: ", "");
    }
    wav(&b, (struct wav){3, 1, 32, 16000, 200});
    set(&b, 44 + 4 * 7, 0x7FC00000, 4); /* no number */
    assert_refused(&b, "WAV: sample 7", "");
    wav(&b, (struct wav){3, 1, 32, 16000, 200});
    set(&b, 44 + 4 * 7, 0x7F7FFFFF, 4);
    assert_refused(&b, "WAV: sample 7", "32768");
    str_release(&b);
}

/* ---- the goldens ---- */

static void decoded_files_are_those_of_the_reference(void **state)
{
    (void)state;
    static const char *const folder[] = {"vision_31b", "vision_e4b", "vision_12b"};
    for (size_t i = 0; i < 3 * 2; i++) {
        char path[200], key[20], hex[SHA256_HEX + 1], *text;
        size_t n;
        struct json_object *meta, *image, *v;
        struct media_data d, want;
        struct err err = {0};
        (void)snprintf(path, sizeof path, "tests/data/vision/%s/meta.json", folder[i / 2]);
        assert_int_equal(file_slurp(path, 1 << 20, &text, &n, &err), INGLE_OK);
        assert_int_equal(json_parse(text, n, NULL, &meta, &err), INGLE_OK);
        mem_free(text);
        (void)snprintf(key, sizeof key, "image%zu", i % 2);
        assert_true(json_object_object_get_ex(meta, key, &image));
        assert_true(json_object_object_get_ex(image, "file", &v));
        (void)snprintf(path, sizeof path, "tests/data/vision/%s/%s", folder[i / 2],
                       json_object_get_string(v));
        assert_int_equal(file_slurp(path, 1 << 20, &text, &n, &err), INGLE_OK);
        if (!media_can_decode(media_sniff(text, n)) || !media_can_decode(MEDIA_PNG)) {
            mem_free(text);
            json_object_put(meta);
            continue;
        }
        assert_int_equal(media_decode(decoder, text, n, path, &d, &err), INGLE_OK);
        mem_free(text);
        sha256_hex(d.picture.rgb, (size_t)d.picture.width * (size_t)d.picture.height * 3, hex,
                   SHA256_HEX);
        assert_true(json_object_object_get_ex(image, "decoded_sha256", &v));
        assert_string_equal(hex, json_object_get_string(v));
        json_object_put(meta);
        /* and resized */
        (void)snprintf(path, sizeof path, "tests/data/vision/%s/image%zu-resized.png",
                       folder[i / 2], i % 2);
        assert_int_equal(file_slurp(path, 1 << 20, &text, &n, &err), INGLE_OK);
        assert_int_equal(media_decode(decoder, text, n, path, &want, &err), INGLE_OK);
        mem_free(text);
        struct media_picture r;
        assert_int_equal(media_prepare(&d.picture, 70, i / 2 ? 24 : 48, &r, NULL, &err), INGLE_OK);
        assert_int_equal(r.width, want.picture.width);
        assert_int_equal(r.height, want.picture.height);
        assert_memory_equal(r.rgb, want.picture.rgb, (size_t)r.width * (size_t)r.height * 3);
        media_picture_release(&r);
        media_data_release(&d);
        media_data_release(&want);
    }
}

/* ---- the process ---- */

static void a_child_costs_its_own_file_only(void **state)
{
    (void)state;
    static const struct {
        uint32_t trial, seconds, wait;
        const char *said;
        bool limits; /* which sanitizers cannot have */
    } way[] = {{MEDIA_TRIAL_WORK, 1, 120, "1 seconds of processor time", false},
               {MEDIA_TRIAL_WAIT, 10, 1, "1 seconds without a result", false},
               {MEDIA_TRIAL_LIE, 10, 120, "64 megapixels", false},
               {MEDIA_TRIAL_CRASH, 10, 120, "crashed (signal 11)", true},
               {MEDIA_TRIAL_GROW, 10, 120, "memory is 1024 MiB", true},
               {MEDIA_TRIAL_OPEN, 10, 120, "forbidden system call", true},
               {MEDIA_TRIAL_CODE, 10, 120, "forbidden system call", true}};
    struct str b;
    uint8_t rgb[W * H * 3];
    str_init(&b);
    numbered(rgb);
    for (size_t i = 0; i < sizeof way / sizeof *way; i++) {
        if (way[i].limits && (UNIT_ASAN || UNIT_TSAN))
            continue;
        media_decoder_try(decoder, way[i].trial, way[i].seconds, way[i].wait);
        png_rgb(&b, rgb, NULL, 0);
        assert_refused(&b, way[i].said, "");
        media_decoder_try(decoder, MEDIA_TRIAL_NONE, 10, 120);
        png_rgb(&b, rgb, NULL, 0);
        assert_picture(&b, W, H, rgb);
    }
    str_release(&b);
    assert_true(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD); /* none is left */
}

/* Each system call that is none of the few allowed ones ends the child. */
static void a_child_may_only_compute(void **state)
{
    static const int calls[] = {
        SYS_clone,    SYS_execve,  SYS_socket,  SYS_connect, SYS_ptrace,   SYS_kill,
        SYS_openat,   SYS_ioctl,   SYS_prctl,   SYS_mount,   SYS_unlinkat, SYS_memfd_create,
        SYS_sendmsg,  SYS_dup,     SYS_fcntl,   SYS_setuid,  SYS_prlimit64, SYS_process_vm_readv,
        SYS_nanosleep, 444 /* landlock_create_ruleset */, 425 /* io_uring_setup */};
    struct str b;
    uint8_t rgb[W * H * 3];
    (void)state;
    if (UNIT_ASAN || UNIT_TSAN)
        skip(); /* no filter */
    str_init(&b);
    numbered(rgb);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        media_decoder_try(decoder, MEDIA_TRIAL_CALL | (uint32_t)calls[i] << 16, 10, 120);
        png_rgb(&b, rgb, NULL, 0);
        assert_refused(&b, "forbidden system call", "");
    }
    media_decoder_try(decoder, MEDIA_TRIAL_NONE, 10, 120);
    str_release(&b);
}

/* What is left open in the host is closed in the child, its terminal as well. */
static void a_child_says_nothing(void **state)
{
    struct str b;
    uint8_t rgb[W * H * 3];
    char got[8];
    int pipe_fd[2];
    (void)state;
    if (UNIT_ASAN || UNIT_TSAN)
        skip(); /* reports go there */
    str_init(&b);
    numbered(rgb);
    assert_int_equal(pipe(pipe_fd), 0);
    const int out = dup(1), err = dup(2);
    (void)fflush(stdout);
    assert_true(dup2(pipe_fd[1], 1) == 1 && dup2(pipe_fd[1], 2) == 2);
    media_decoder_try(decoder, MEDIA_TRIAL_SAY, 10, 120);
    png_rgb(&b, rgb, NULL, 0);
    struct media_data d = {0};
    const ingle_status s = decode(&b, &d, NULL);
    (void)dup2(out, 1);
    (void)dup2(err, 2);
    close(out);
    close(err);
    close(pipe_fd[1]);
    assert_int_equal(s, INGLE_OK);
    assert_int_equal(read(pipe_fd[0], got, sizeof got), 0);
    close(pipe_fd[0]);
    media_data_release(&d);
    media_decoder_try(decoder, MEDIA_TRIAL_NONE, 10, 120);
    str_release(&b);
}

/* In a process of its own: 0 when nothing can be opened or reached. */
static int what_landlock_allows(void)
{
    const int version = media_landlock();
    struct err err;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || media_child_landlock(&err))
        return 1;
    if (open("/etc/passwd", O_RDONLY | O_CLOEXEC) >= 0 || errno != EACCES)
        return 2;
    if (open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0)
        return 3;
    if (mkdir("/tmp/ingle-landlock", 0700) == 0)
        return 4;
    if (version >= 6 && kill(getppid(), 0) == 0)
        return 5;
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
    if (version >= 4 && s >= 0 &&
        (connect(s, (const void *)&to, sizeof to) == 0 || errno != EACCES))
        return 6;
    return 0;
}

static void landlock_refuses_files(void **state)
{
    int status;
    (void)state;
    if (!media_landlock())
        skip();
    (void)fflush(stdout);
    const pid_t pid = fork();
    if (!pid)
        _exit(what_landlock_allows());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void *decode_many(void *arg)
{
    struct str b;
    uint8_t rgb[W * H * 3];
    str_init(&b);
    numbered(rgb);
    for (int i = 0; i < 8; i++) {
        struct media_data d;
        png_rgb(&b, rgb, NULL, 0);
        if (decode(&b, &d, NULL) != INGLE_OK || memcmp(d.picture.rgb, rgb, sizeof rgb) != 0)
            *(bool *)arg = true;
        else
            media_data_release(&d);
    }
    str_release(&b);
    return NULL;
}

static void threads_take_turns(void **state)
{
    (void)state;
    pthread_t t[5];
    bool failed[5] = {false};
    for (int i = 0; i < 5; i++)
        assert_int_equal(pthread_create(&t[i], NULL, decode_many, &failed[i]), 0);
    for (int i = 0; i < 5; i++) {
        pthread_join(t[i], NULL);
        assert_false(failed[i]);
    }
}

int main(void)
{
#ifndef INGLE_PNG /* they write PNG files */
    (void)png_kinds_become_rgb;
    (void)pictures_stand_upright;
    (void)broken_png_is_refused;
    (void)a_child_costs_its_own_file_only;
    (void)a_child_may_only_compute;
    (void)a_child_says_nothing;
    (void)threads_take_turns;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(landlock_refuses_files),
#ifdef INGLE_PNG
        cmocka_unit_test(png_kinds_become_rgb),
        cmocka_unit_test(pictures_stand_upright),
        cmocka_unit_test(broken_png_is_refused),
        cmocka_unit_test(a_child_costs_its_own_file_only),
        cmocka_unit_test(a_child_may_only_compute),
        cmocka_unit_test(a_child_says_nothing),
        cmocka_unit_test(threads_take_turns),
#endif
#ifdef INGLE_JPEG
        cmocka_unit_test(jpeg_kinds_become_rgb),
        cmocka_unit_test(broken_jpeg_is_refused),
        cmocka_unit_test(a_jpeg_of_many_scans_is_refused),
#endif
#ifdef INGLE_WEBP
        cmocka_unit_test(webp_has_the_same_pixels_as_png),
#endif
        cmocka_unit_test(alpha_is_put_on_white),
        cmocka_unit_test(a_broken_exif_block_turns_nothing),
        cmocka_unit_test(other_formats_are_named),
        cmocka_unit_test(the_first_frame_of_a_gif_is_read),
        cmocka_unit_test(broken_gif_is_refused),
        cmocka_unit_test(sounds_of_every_kind_are_the_same_tone),
        cmocka_unit_test(high_tones_are_cut_off),
        cmocka_unit_test(broken_sounds_are_refused),
        cmocka_unit_test(decoded_files_are_those_of_the_reference),
    };
    return cmocka_run_group_tests(tests, open_decoder, close_decoder);
}
