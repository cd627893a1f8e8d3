/* SPDX-License-Identifier: Apache-2.0 */
/* source_tower - the encoders of pictures and sound of a checkpoint as llama.cpp's converter writes
 * them: an "mmproj" file. */
#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include "tool/source_impl.h"
#include "tower/tower.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SIDE_LIMIT = 16 << 20 };

/* ---- keys ---- */

static ingle_status read_processor(const struct tool_source *s, struct json_object **out,
                                   struct err *err)
{
    char *text;
    size_t n;
    *out = NULL;
    ingle_status st = io_side_file(s->file, "processor_config.json", SIDE_LIMIT, &text, &n, err);
    if (st)
        return st == INGLE_NOTFOUND ? INGLE_OK : st;
    st = json_parse(text, n, NULL, out, err);
    mem_free(text);
    return st;
}

static ingle_status set_text(struct tool_source *s, const char *key, const char *v, size_t n)
{
    return io_meta_set_str(s->meta, key, v, n);
}

static ingle_status set_name(struct tool_source *s)
{
    const char *end = s->path + strlen(s->path), *start;
    if (s->o.name)
        return set_text(s, "general.name", s->o.name, strlen(s->o.name));
    while (end > s->path && end[-1] == '/')
        end--;
    for (start = end; start > s->path && start[-1] != '/';)
        start--;
    return set_text(s, "general.name", start, (size_t)(end - start));
}

/* What readers of such files ask for, whatever it means for these encoders. */
static ingle_status set_constants(struct tool_source *s, const struct io_meta *keys)
{
    static const double zeros[3] = {0, 0, 0}, ones[3] = {1, 1, 1};
    struct io_meta *m = s->meta;
    ingle_status st = INGLE_OK;
    if (io_meta_find(keys, "clip.has_vision_encoder") &&
        ((st = io_meta_set_u64(m, "clip.vision.image_size", 224)) ||
         (st = io_meta_set_f64s(m, "clip.vision.image_mean", zeros, 3)) ||
         (st = io_meta_set_f64s(m, "clip.vision.image_std", ones, 3)) ||
         (st = io_meta_set_f64(m, "clip.vision.attention.layer_norm_epsilon", 1e-6))))
        return st;
    if (io_meta_find(keys, "clip.has_audio_encoder") &&
        ((st = io_meta_set_u64(m, "clip.audio.num_mel_bins", 128)) ||
         (st = io_meta_set_f64(m, "clip.audio.attention.layer_norm_epsilon", 1e-6))))
        return st;
    return INGLE_OK;
}

/* Keys that only ingle reads, of values that the file has otherwise or never differ. */
static bool is_internal(const struct io_value *v)
{
    return !strcmp(v->key, "clip.vision.default_tokens") ||
           (!strcmp(v->key, "clip.vision.projector.scale_factor") && v->v.u == 3);
}

static ingle_status copy_keys(struct tool_source *s, const struct io_meta *keys)
{
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < io_meta_count(keys) && !st; i++) {
        const struct io_value *v = io_meta_at(keys, i);
        if (is_internal(v))
            continue;
        st = v->kind == IO_U64    ? io_meta_set_u64(s->meta, v->key, v->v.u)
             : v->kind == IO_BOOL ? io_meta_set_bool(s->meta, v->key, v->v.b)
                                  : io_meta_set_str(s->meta, v->key, v->v.s, v->n);
    }
    return st;
}

static ingle_status make_keys(struct tool_source *s, bool *unified, struct err *err)
{
    struct json_object *processor = NULL, *type = NULL;
    struct io_meta *keys = io_meta_create();
    ingle_status st = keys ? read_processor(s, &processor, err) : INGLE_NOMEM;
    if (keys && !st)
        st = tower_config(s->config, processor, keys, s->path, err);
    json_object_put(processor);
    if (keys && !st && !io_meta_find(keys, "clip.has_vision_encoder") &&
        !io_meta_find(keys, "clip.has_audio_encoder"))
        st = err_set(err, INGLE_ARG,
                     "%s: config.json has neither 'vision_config' nor 'audio_config': there are no "
                     "encoders",
                     s->path);
    if (!st && ((st = set_text(s, "general.architecture", "clip", 4)) ||
                (st = set_text(s, "general.type", "mmproj", 6)) || (st = set_name(s)) ||
                (st = copy_keys(s, keys)) || (st = set_constants(s, keys))))
        st = err_set(err, st, "%s: no memory for its metadata", s->path);
    io_meta_free(keys);
    if (json_object_object_get_ex(s->config, "model_type", &type))
        *unified = !strcmp(json_object_get_string(type), "gemma4_unified");
    return st == INGLE_NOMEM ? err_set(err, st, "%s: no memory for its metadata", s->path) : st;
}

/* ---- tensors ---- */

/* Elements of `rows` rows from (y, x, channel) to (channel, y, x), of squares of side p. */
static void channels_first(float *v, float *room, uint64_t rows, uint64_t p)
{
    const uint64_t n = 3 * p * p;
    for (uint64_t r = 0; r < rows; r++, v += n) {
        for (uint64_t i = 0; i < p * p; i++)
            for (uint64_t c = 0; c < 3; c++)
                room[c * p * p + i] = v[i * 3 + c];
        memcpy(v, room, (size_t)n * sizeof *v);
    }
}

/* [n][2][d] to [2][n][d]. */
static void places_first(const float *v, float *to, uint64_t n, uint64_t d)
{
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < 2; k++)
            memcpy(to + (k * n + i) * d, v + (2 * i + k) * d, (size_t)d * sizeof *to);
}

/* In steps of f32, as the reference computes it. */
static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* One that is F32 in the file: its values, and their shape. */
struct values {
    const char *name;
    float *v;
    uint64_t n, ne[4];
    uint32_t n_dims;
    uint64_t side; /* of a patch, or of a block without an encoder */
};

/* The order of elements in an mmproj file. */
static ingle_status rearrange(struct values *a, bool unified, struct err *err)
{
    const bool patch = !strcmp(a->name, "v.patch_embd.weight"),
               norm = unified && !strncmp(a->name, "v.patch_norm.1.", 15),
               place = unified && !strcmp(a->name, "v.position_embd.weight");
    const uint64_t elements = 3 * a->side * a->side;
    if (patch || norm) {
        if (a->ne[0] != elements)
            return err_set(err, INGLE_FORMAT,
                           "tensor '%s' has rows of %llu, expected 3 x %llu x %llu", a->name,
                           (unsigned long long)a->ne[0], (unsigned long long)a->side,
                           (unsigned long long)a->side);
        float *room = mem_calloc((size_t)elements, sizeof *room);
        if (!room)
            return err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", a->name);
        channels_first(a->v, room, a->n / elements, a->side);
        mem_free(room);
        if (patch && !unified) {
            a->ne[3] = a->ne[1];
            a->ne[0] = a->ne[1] = a->side;
            a->ne[2] = 3;
            a->n_dims = 4;
        }
    }
    if (place && a->n_dims == 3 && a->ne[1] == 2) {
        float *to = mem_calloc((size_t)a->n, sizeof *to);
        if (!to)
            return err_set(err, INGLE_NOMEM, "no memory for tensor '%s'", a->name);
        places_first(a->v, to, a->ne[2], a->ne[0]);
        mem_free(a->v);
        a->v = to;
        a->ne[1] = a->ne[2];
        a->ne[2] = 2;
    }
    if (str_ends(a->name, ".per_dim_scale.weight"))
        for (uint64_t i = 0; i < a->n; i++)
            a->v[i] = softplus(a->v[i]);
    if (str_ends(a->name, ".conv_dw.weight") && a->n_dims == 3) { /* [d][1][5] */
        a->ne[1] = a->ne[2];
        a->n_dims = 2;
    }
    return INGLE_OK;
}

static ingle_status read_values(const struct tool_source *s, const struct io_tensor *t,
                                struct values *a, struct err *err)
{
    void *stored = NULL;
    size_t bytes;
    if (t->type != QUANT_F32 && t->type != QUANT_F16 && t->type != QUANT_BF16)
        return err_set(err, INGLE_UNSUP, "%s: tensor '%s' has type %s, expected F32, F16 or BF16",
                       s->path, t->name, quant_info(t->type)->name);
    a->n = t->n_bytes / quant_info(t->type)->n_bytes;
    a->n_dims = t->n_dims ? t->n_dims : 1;
    for (uint32_t i = 0; i < 4; i++)
        a->ne[i] = i < t->n_dims ? t->ne[i] : 1;
    if (num_mul((size_t)a->n, sizeof(float), &bytes))
        a->v = mem_alloc(bytes);
    stored = mem_alloc(t->n_bytes);
    ingle_status st = a->v && stored ? io_read(s->file, t, 0, stored, t->n_bytes, err)
                                     : err_set(err, INGLE_NOMEM, "%s: no memory for tensor '%s'",
                                               s->path, t->name);
    if (!st)
        quant_decode(t->type, stored, a->v, (size_t)a->n);
    mem_free(stored);
    return st;
}

static ingle_status add_values(struct tool_source *s, const struct io_tensor *t, const char *name,
                               uint64_t side, bool unified, struct err *err)
{
    struct values a = {.name = name, .side = side};
    if (t->n_dims > 4)
        return err_set(err, INGLE_FORMAT, "%s: tensor '%s' has %u axes", s->path, t->name,
                       t->n_dims);
    ingle_status st = read_values(s, t, &a, err);
    if (!st)
        st = rearrange(&a, unified, err);
    if (st) {
        mem_free(a.v);
        return st;
    }
    st = tool_source_add_constant(s, name, a.v, a.n, err);
    if (st)
        return st;
    struct io_tensor *to = &s->item[s->n - 1].t;
    to->n_dims = a.n_dims;
    for (uint32_t i = 0; i < IO_MAX_DIMS; i++)
        to->ne[i] = i < 4 ? a.ne[i] : 1;
    return INGLE_OK;
}

ingle_status tool_source_list_tower(struct tool_source *s, struct err *err)
{
    bool unified = false;
    uint64_t side = 0;
    s->kind = SOURCE_TOWER;
    ingle_status st = make_keys(s, &unified, err);
    if (!st && io_meta_find(s->meta, "clip.vision.patch_size"))
        st = io_get_u64(s->meta, "clip.vision.patch_size", 1, 64, &side, err);
    side *= unified ? 3 : 1;
    if (!st)
        st = model_create(&s->model, s->file, NULL, tower_rename, s->sink, err);
    for (size_t i = 0; i < io_n_tensors(s->file) && !st; i++) {
        char name[SOURCE_NAME];
        const struct io_tensor *t = io_tensor_at(s->file, i);
        if (!tower_rename(t->name, name, sizeof name))
            continue;
        struct io_tensor as = *t;
        as.name = name;
        st = tower_is_matrix(&as) ? tool_source_add_stack(s, name, name, 2, err)
                                  : add_values(s, t, name, side, unified, err);
    }
    if (!st && !s->n)
        st = err_set(err, INGLE_FORMAT, "%s: no tensor has a name of an encoder", s->path);
    return st;
}
