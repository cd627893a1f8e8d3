/*
 * args_pages - inside the room: the arguments of operations on pages.
 */
#ifndef INGLE_DEVICE_ARGS_PAGES_H
#define INGLE_DEVICE_ARGS_PAGES_H

#include "device/device.h"

struct device_rows_append_args {
    const struct device_stream *s;
    const struct device_span *span;
    int64_t n_spans;
    struct rows x;
};
struct device_rows_read_args {
    const struct device_stream *s;
    const struct device_span *span;
    int64_t n_spans;
    struct rows y;
};
struct device_compress_args {
    const struct device_compress *c;
    const struct device_span *in, *out;
    int64_t n_spans;
};
struct device_select_args {
    const struct device_select *s;
    const struct device_span *span;
    int64_t n_spans;
    struct rows q, weight;
    int32_t *sel, *count;
};
struct device_attend_latent_args {
    const struct device_latent *a;
    const struct device_span *near, *far;
    int64_t n_spans;
    struct rows q;
    int64_t n_heads;
    struct rows out;
    float scale;
};

struct device_kv_append_args {
    const struct device_kv *kv;
    const struct device_span *span;
    int64_t n_spans;
    struct rows k, v;
};
struct device_attend_args {
    const struct device_kv *kv;
    const struct device_span *span;
    int64_t n_spans;
    struct rows q;
    int64_t n_q_heads;
    struct rows out;
    int64_t window;
    float scale;
};
struct device_probe_args {
    const struct device_kv *kv;
    const struct device_span *span;
    struct rows q;
    int64_t n_q_heads;
    float scale;
    float *best, *room;
    int64_t stride;
};
struct device_shadow_append_args {
    const struct device_shadow *shadow;
    const struct device_kv *kv;
    const struct device_span *span, *own;
    int64_t n_spans;
    struct rows k;
};
struct device_select_pages_args {
    const struct device_page_select *select;
    struct rows q;
    int64_t n_q_heads;
    float scale;
};
struct device_attend_selected_args {
    const struct device_kv *kv;
    const struct device_page_select *select;
    int64_t head;
    struct rows q;
    int64_t n_q_heads;
    struct rows out;
    float scale;
};

#endif
