/* SPDX-License-Identifier: Apache-2.0 */
/* JPEG by libjpeg-turbo with its defaults. */
#include "media/child/child.h"

#ifdef INGLE_JPEG
#include "base/mem.h"

#include <setjmp.h>
#include <stdio.h> /* jpeglib.h needs it */
#include <string.h>

#include <jerror.h>
#include <jpeglib.h>

enum { MAX_SCANS = 100, MAX_MEMORY = 640 << 20 };

struct work {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf fail;
    struct err *err;
    bool has_header;
    int orientation;
    bool is_short; /* the file ended before the picture */
    struct media_picture p;
    JSAMPROW row; /* CMYK only: owns */
};

static ATTR_NORETURN void stop(j_common_ptr d)
{
    struct work *w = d->client_data;
    char text[JMSG_LENGTH_MAX];
    const int code = d->err->msg_code;
    d->err->format_message(d, text);
    if (code == JERR_OUT_OF_MEMORY || code == JERR_NO_BACKING_STORE)
        (void)err_set(w->err, INGLE_ARG, "JPEG: it needs more than %d MiB of memory",
                      MAX_MEMORY >> 20);
    else
        (void)err_set(w->err, INGLE_ARG, "JPEG: %s", text);
    longjmp(w->fail, 1);
}

/* Bytes between markers are tolerated in the data, where cameras leave some; in the header they
 * are a wrong length. */
static void on_message(j_common_ptr d, int level)
{
    const struct work *w = d->client_data;
    if (level < 0 && d->err->msg_code == JWRN_EXTRANEOUS_DATA && !w->has_header)
        stop(d);
}

static void nothing(j_decompress_ptr d)
{
    (void)d;
}

/* libjpeg wants more than there is: it gets an end marker, so that it comes to an end. */
static boolean fill(j_decompress_ptr d)
{
    static const JOCTET end[] = {0xFF, JPEG_EOI};
    struct work *w = d->client_data;
    w->is_short = true;
    d->src->next_input_byte = end;
    d->src->bytes_in_buffer = sizeof end;
    return TRUE;
}

static void skip(j_decompress_ptr d, long n)
{
    if (n <= 0)
        return;
    if ((size_t)n > d->src->bytes_in_buffer) {
        (void)fill(d);
        return;
    }
    d->src->next_input_byte += n;
    d->src->bytes_in_buffer -= (size_t)n;
}

/* Called for each scan that is read: some files of a few KB have thousands. */
static void watch(j_common_ptr d)
{
    struct work *w = d->client_data;
    if (w->d.input_scan_number <= MAX_SCANS)
        return;
    (void)err_set(w->err, INGLE_ARG, "JPEG: it has more than %d scans", MAX_SCANS);
    longjmp(w->fail, 1);
}

static ATTR_NORETURN void refuse(struct work *w, const char *what)
{
    (void)err_set(w->err, INGLE_ARG, "JPEG: %s", what);
    longjmp(w->fail, 1);
}

static void begin(struct work *w, const uint8_t *at, size_t n)
{
    w->d.err = jpeg_std_error(&w->errors);
    w->errors.error_exit = stop;
    w->errors.emit_message = on_message;
    w->d.client_data = w;
    jpeg_create_decompress(&w->d);
    w->d.mem->max_memory_to_use = MAX_MEMORY;
    w->progress.progress_monitor = watch;
    w->d.progress = &w->progress;
    w->source = (struct jpeg_source_mgr){.next_input_byte = at,
                                         .bytes_in_buffer = n,
                                         .init_source = nothing,
                                         .fill_input_buffer = fill,
                                         .skip_input_data = skip,
                                         .resync_to_restart = jpeg_resync_to_restart,
                                         .term_source = nothing};
    w->d.src = &w->source;
    jpeg_save_markers(&w->d, JPEG_APP0 + 1, 0xFFFF);
}

static void read_header(struct work *w)
{
    (void)jpeg_read_header(&w->d, TRUE);
    w->has_header = true;
    if (media_check_pixels(w->d.image_width, w->d.image_height, "JPEG", w->err) != INGLE_OK)
        longjmp(w->fail, 1);
    if (w->d.arith_code)
        refuse(w, "arithmetic coding is not supported");
    const int n = w->d.num_components;
    if (n != 1 && n != 3 && n != 4) {
        (void)err_set(w->err, INGLE_ARG, "JPEG: %d components; 1, 3 and 4 are supported", n);
        longjmp(w->fail, 1);
    }
    w->d.out_color_space = n == 4 ? JCS_CMYK : JCS_RGB;
}

/* a * b / 255, rounded */
static unsigned times(unsigned a, unsigned b)
{
    const unsigned t = a * b + 128;
    return ((t >> 8) + t) >> 8;
}

/* Files have CMYK inverted, so k is 255 minus the ink: white paper times what the inks leave. */
static void from_cmyk(const JSAMPLE *in, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++, in += 4, out += 3)
        for (int c = 0; c < 3; c++) {
            const int v = (int)in[3] - (int)times(255U - in[c], in[3]);
            out[c] = (uint8_t)(v < 0 ? 0 : v);
        }
}

static void read_rows(struct work *w)
{
    const size_t width = w->d.output_width, n_channels = (size_t)w->d.output_components;
    if (n_channels == 4 && !(w->row = mem_calloc(width, 4)))
        refuse(w, "no memory for a row");
    while (w->d.output_scanline < w->d.output_height) {
        uint8_t *out = w->p.rgb + (size_t)w->d.output_scanline * width * 3;
        JSAMPROW row = n_channels == 4 ? w->row : out;
        if (jpeg_read_scanlines(&w->d, &row, 1) != 1)
            refuse(w, "it ends too early");
        if (n_channels == 4)
            from_cmyk(w->row, out, width);
        if (w->is_short)
            break;
    }
}

static int orientation_of(const struct work *w)
{
    for (const struct jpeg_marker_struct *m = w->d.marker_list; m; m = m->next)
        if (m->data_length >= 6 && memcmp(m->data, "Exif\0\0", 6) == 0)
            return media_child_orientation(m->data, m->data_length);
    return 1;
}

static void decode(struct work *w)
{
    read_header(w);
    w->orientation = orientation_of(w); /* markers are dropped after the last row */
    const int width = (int)w->d.image_width, height = (int)w->d.image_height;
    w->p = (struct media_picture){width, height, NULL};
    if (media_child_pixels(&w->p.rgb, width, height, 3, "JPEG", w->err) != INGLE_OK)
        longjmp(w->fail, 1);
    (void)jpeg_start_decompress(&w->d);
    if (!w->is_short)
        read_rows(w);
    if (!w->is_short) /* what follows the last row: more scans, or the end marker */
        (void)jpeg_finish_decompress(&w->d);
}

static bool run(struct work *w, const uint8_t *at, size_t n)
{
    if (setjmp(w->fail))
        return false;
    begin(w, at, n);
    decode(w);
    return !w->is_short;
}

/* Lengths of the markers before the first scan: libjpeg passes over one that is too small. */
static ingle_status check_markers(const uint8_t *at, size_t n, struct err *err)
{
    for (size_t i = 2; i + 4 <= n && at[i] == 0xFF;) {
        const uint8_t marker = at[i + 1];
        if (marker == 0xFF) { /* it may be preceded by any number of them */
            i++;
            continue;
        }
        if (marker == 0x01 || (marker >= JPEG_RST0 && marker <= JPEG_RST0 + 8)) {
            i += 2; /* these have no length */
            continue;
        }
        if (marker == JPEG_EOI)
            return INGLE_OK;
        const unsigned length = (unsigned)at[i + 2] << 8 | at[i + 3];
        if (length < 2)
            return err_set(err, INGLE_ARG,
                           "JPEG: marker ff%02x at byte %zu has the length %u; the least is 2",
                           marker, i, length);
        if (marker == 0xDA) /* the first scan */
            return INGLE_OK;
        i += 2 + (size_t)length;
    }
    return INGLE_OK;
}

ingle_status media_child_jpeg(const uint8_t *at, size_t n, struct media_picture *out,
                              int *orientation, struct err *err)
{
    ingle_status s = check_markers(at, n, err);
    if (s)
        return s;
    s = INGLE_ARG;
    struct work *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_set(err, INGLE_ARG, "JPEG: no memory");
    w->err = err;
    if (run(w, at, n)) {
        *orientation = w->orientation;
        *out = w->p;
        w->p.rgb = NULL;
        s = INGLE_OK;
    } else if (w->is_short)
        s = err_set(err, INGLE_ARG,
                    "JPEG: the file is cut short: the picture goes on after %zu bytes", n);
    jpeg_destroy_decompress(&w->d);
    mem_free(w->row);
    media_picture_release(&w->p);
    mem_free(w);
    return s;
}
#else
ingle_status media_child_jpeg(const uint8_t *at, size_t n, struct media_picture *out,
                              int *orientation, struct err *err)
{
    (void)at, (void)n, (void)out, (void)orientation;
    return err_set(err, INGLE_ARG, "JPEG: this build reads none");
}
#endif
