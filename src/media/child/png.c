/* SPDX-License-Identifier: Apache-2.0 */
/* PNG by libpng: any kind becomes RGB of 8 bits, or RGBA that is put on white. */
#include "media/child/child.h"

#ifdef INGLE_PNG
#include "base/mem.h"

#include <png.h>
#include <setjmp.h>
#include <string.h>

struct work {
    png_structp png;
    png_infop info;
    jmp_buf fail;
    struct err *err;
    const uint8_t *at;
    size_t n, done;
    struct media_picture p;
    png_bytep *row; /* [height], owns */
};

static ATTR_NORETURN void stop(png_structp png, png_const_charp text)
{
    struct work *w = png_get_error_ptr(png);
    (void)err_set(w->err, INGLE_ARG, "PNG: %s", text);
    longjmp(w->fail, 1);
}

static void be_quiet(png_structp png, png_const_charp text)
{
    (void)png, (void)text;
}

static void give(png_structp png, png_bytep to, size_t n)
{
    struct work *w = png_get_io_ptr(png);
    if (n > w->n - w->done) {
        (void)err_set(w->err, INGLE_ARG,
                      "PNG: the file is cut short: the picture goes on after %zu bytes", w->n);
        longjmp(w->fail, 1);
    }
    memcpy(to, w->at + w->done, n);
    w->done += n;
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* The header stands at a fixed place: signature, length, "IHDR", width, height. */
static ingle_status check_header(const uint8_t *at, size_t n, struct err *err)
{
    if (n < 33)
        return err_set(err, INGLE_ARG, "PNG: the file is cut short: %zu bytes have no header", n);
    if (memcmp(at + 12, "IHDR", 4) != 0)
        return err_set(err, INGLE_ARG, "PNG: its first chunk is no IHDR");
    return media_check_pixels(u32_at(at + 16), u32_at(at + 20), "PNG", err);
}

static void begin(struct work *w)
{
    /* chunks that no pixel depends on, and that unpack to more than they are */
    static const png_byte ignored[] = "iCCP\0tEXt\0zTXt\0iTXt\0sPLT\0hIST\0pCAL\0sCAL";
    w->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, w, stop, be_quiet);
    w->info = w->png ? png_create_info_struct(w->png) : NULL;
    if (!w->info) {
        (void)err_set(w->err, INGLE_ARG, "PNG: no memory");
        longjmp(w->fail, 1);
    }
    png_set_read_fn(w->png, w, give);
    png_set_user_limits(w->png, MEDIA_MAX_SIDE, MEDIA_MAX_SIDE);
    png_set_chunk_malloc_max(w->png, 8 << 20);
    png_set_chunk_cache_max(w->png, 128);
    png_set_keep_unknown_chunks(w->png, PNG_HANDLE_CHUNK_NEVER, ignored, 8);
    png_set_crc_action(w->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
}

static int set_byte_format(struct work *w)
{
    png_read_info(w->png, w->info);
    png_set_expand(w->png);
    png_set_strip_16(w->png);
    png_set_gray_to_rgb(w->png);
    (void)png_set_interlace_handling(w->png);
    png_read_update_info(w->png, w->info);
    return png_get_channels(w->png, w->info);
}

static void decode(struct work *w)
{
    begin(w);
    const int n_channels = set_byte_format(w);
    w->p.width = (int)png_get_image_width(w->png, w->info);
    w->p.height = (int)png_get_image_height(w->png, w->info);
    const size_t row = (size_t)w->p.width * (size_t)n_channels, h = (size_t)w->p.height;
    if ((n_channels != 3 && n_channels != 4) || png_get_rowbytes(w->png, w->info) != row)
        png_error(w->png, "unknown kind of pixels");
    if (media_child_pixels(&w->p.rgb, w->p.width, w->p.height, n_channels, "PNG", w->err) !=
        INGLE_OK)
        longjmp(w->fail, 1);
    w->row = mem_calloc(h, sizeof *w->row);
    if (!w->row)
        png_error(w->png, "no memory for its rows");
    for (size_t y = 0; y < h; y++)
        w->row[y] = w->p.rgb + y * row;
    png_read_image(w->png, w->row);
    png_read_end(w->png, w->info);
    if (n_channels == 4)
        media_child_on_white(w->p.rgb, (size_t)w->p.width * h);
}

static int orientation_of(struct work *w)
{
    png_uint_32 n = 0;
    png_bytep at = NULL;
    return png_get_eXIf_1(w->png, w->info, &n, &at) && at ? media_child_orientation(at, n) : 1;
}

static bool run(struct work *w)
{
    if (setjmp(w->fail))
        return false;
    decode(w);
    return true;
}

ingle_status media_child_png(const uint8_t *at, size_t n, struct media_picture *out,
                             int *orientation, struct err *err)
{
    ingle_status s = check_header(at, n, err);
    if (s != INGLE_OK)
        return s;
    struct work *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_set(err, INGLE_ARG, "PNG: no memory");
    w->err = err;
    w->at = at;
    w->n = n;
    s = INGLE_ARG;
    if (run(w)) {
        *orientation = orientation_of(w);
        *out = w->p;
        w->p.rgb = NULL;
        s = INGLE_OK;
    }
    png_destroy_read_struct(&w->png, &w->info, NULL);
    mem_free(w->row);
    media_picture_release(&w->p);
    mem_free(w);
    return s;
}
#else
ingle_status media_child_png(const uint8_t *at, size_t n, struct media_picture *out,
                             int *orientation, struct err *err)
{
    (void)at, (void)n, (void)out, (void)orientation;
    return err_set(err, INGLE_ARG, "PNG: this build reads none");
}
#endif
