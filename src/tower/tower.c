/* SPDX-License-Identifier: Apache-2.0 */
/* tower - opening, memory, and runs. */
#include "tower/bind.h"
#include "tower/forward.h"
#include "tower/inner.h"

#include "base/bug.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/sha256.h"
#include "base/str.h"
#include "media/media.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SIDE_FILE = 16 << 20, PIECE = 1 << 20, DEFAULT_BUDGET = 280 };

/* ---- what is in the file ---- */

/* A side file of a checkpoint, or NULL in *out where it is not there. */
static ingle_status read_side(const struct io_file *f, const char *name, struct json_object **out,
                              struct err *err)
{
    char *text;
    size_t n;
    ingle_status s = io_side_file(f, name, SIDE_FILE, &text, &n, err);
    *out = NULL;
    if (s)
        return s == INGLE_NOTFOUND ? INGLE_OK : s;
    s = json_parse(text, n, NULL, out, err);
    mem_free(text);
    if (s)
        err_prefix(err, "'%s': %s", io_path(f), name);
    return s;
}

/* A word of the encoder of pictures. */
static enum tower_says says(struct json_object *config, const char *key)
{
    struct json_object *v;
    if (!json_object_object_get_ex(config, "vision_config", &v) ||
        !json_object_is_type(v, json_type_object) || !json_object_object_get_ex(v, key, &v))
        return SAYS_NOTHING;
    return json_object_get_boolean(v) ? SAYS_YES : SAYS_NO;
}

static ingle_status read_config(struct tower *t, struct err *err)
{
    struct json_object *config = NULL, *processor = NULL;
    ingle_status s = read_side(t->file, "config.json", &config, err);
    if (!s)
        s = read_side(t->file, "processor_config.json", &processor, err);
    if (!s && !config)
        s = err_set(err, INGLE_FORMAT, "'%s': config.json is not beside it", io_path(t->file));
    t->config = s ? NULL : io_meta_create();
    if (!s && (!t->config || io_meta_set_name(t->config, io_path(t->file))))
        s = err_set(err, INGLE_NOMEM, "no memory for the configuration");
    if (!s)
        s = tower_config(config, processor, t->config, io_path(t->file), err);
    if (!s) {
        t->standard = says(config, "standardize");
        t->clamps = says(config, "use_clipped_linears");
    }
    t->meta = t->config;
    json_object_put(config);
    json_object_put(processor);
    return s;
}

/* A model's own file with encoders: keys may stand under the model's architecture,
 * "gemma4.vision.block_count". */
static ingle_status own_keys(struct tower *t, struct err *err)
{
    const struct io_meta *m = io_metadata(t->file);
    static const char *const part[2] = {"vision", "audio"},
                             *const project[2] = {"mm.input_projection.weight",
                                                  "mm.a.input_projection.weight"},
                             *const flag[2] = {"clip.has_vision_encoder", "clip.has_audio_encoder"};
    const bool plain[2] = {io_tensor_find(t->file, "v.patch_norm.1.weight") != NULL,
                           !io_tensor_find(t->file, "a.conv1d.0.weight")};
    const char *const kind[2] = {tower_vision_name(plain[0] ? VISION_PATCHES : VISION_ENCODER),
                                 tower_audio_name(plain[1] ? AUDIO_FRAMES : AUDIO_CONFORMER)};
    char key[80];
    ingle_status s = INGLE_OK;
    t->config = io_meta_create();
    if (!t->config || io_meta_set_name(t->config, io_path(t->file)))
        return err_set(err, INGLE_NOMEM, "no memory for the keys of encoders");
    for (size_t i = 0; i < io_meta_count(m) && !s; i++) {
        const struct io_value *v = io_meta_at(m, i);
        const char *rest = !strncmp(v->key, "gemma4.", 7) ? v->key + 7 : "";
        if (v->kind != IO_U64 || (strncmp(rest, "vision.", 7) != 0 && strncmp(rest, "audio.", 6)))
            continue;
        snprintf(key, sizeof key, "clip.%.70s", rest);
        s = io_meta_set_u64(t->config, key, v->v.u);
    }
    for (int i = 0; i < 2 && !s; i++) {
        const struct io_tensor *w = io_tensor_find(t->file, project[i]);
        if (!w || w->n_dims != 2)
            continue;
        s = io_meta_set_bool(t->config, flag[i], true);
        snprintf(key, sizeof key, "clip.%s.projector_type", part[i]);
        if (!s)
            s = io_meta_set_str(t->config, key, kind[i], strlen(kind[i]));
        snprintf(key, sizeof key, "clip.%s.projection_dim", part[i]);
        if (!s)
            s = io_meta_set_u64(t->config, key, w->ne[1]);
    }
    t->meta = t->config;
    return s ? err_set(err, s, "no memory for the keys of encoders") : INGLE_OK;
}

static ingle_status has_encoder(const struct io_meta *m, const char *key, bool *out,
                                struct err *err)
{
    *out = false;
    return io_meta_find(m, key) ? io_get_bool(m, key, out, err) : INGLE_OK;
}

/* Which of two projector types the file has. */
static ingle_status read_kind(const struct tower *t, const char *key, const char *const kinds[2],
                              int *out, struct err *err)
{
    const char *v;
    size_t n;
    ingle_status s = io_get_str(t->meta, key, &v, &n, err);
    if (s == INGLE_NOTFOUND && io_meta_find(t->meta, "clip.projector_type"))
        s = io_get_str(t->meta, "clip.projector_type", &v, &n, err);
    if (s)
        return s;
    for (*out = 0; *out < 2; ++*out)
        if (n == strlen(kinds[*out]) && !memcmp(v, kinds[*out], n))
            return INGLE_OK;
    return err_set(err, INGLE_UNSUP, "'%s': '%s' is '%.*s': ingle reads '%s' and '%s'",
                   io_path(t->file), key, (int)num_min((int64_t)n, 40), v, kinds[0], kinds[1]);
}

/* A file of another kind, by what it says that it is. */
static ingle_status no_projector(const struct tower *t, struct err *err)
{
    const char *arch;
    size_t n;
    if (!io_get_str(t->meta, "general.architecture", &arch, &n, NULL) &&
        (n != 4 || memcmp(arch, "clip", 4) != 0))
        return err_set(err, INGLE_FORMAT,
                       "'%s': 'general.architecture' is '%.*s', expected 'clip': it is no "
                       "projector and has no encoders",
                       io_path(t->file), (int)num_min((int64_t)n, 40), arch);
    return err_set(err, INGLE_FORMAT,
                   "'%s': neither 'clip.has_vision_encoder' nor 'clip.has_audio_encoder' is true",
                   io_path(t->file));
}

static ingle_status read_kinds(struct tower *t, struct err *err)
{
    const char *const vision_kinds[2] = {tower_vision_name(VISION_ENCODER),
                                         tower_vision_name(VISION_PATCHES)},
                      *const audio_kinds[2] = {tower_audio_name(AUDIO_CONFORMER),
                                               tower_audio_name(AUDIO_FRAMES)};
    bool reads_pictures, reads_sound = false;
    int kind;
    ingle_status s = has_encoder(t->meta, "clip.has_vision_encoder", &reads_pictures, err);
    if (!s)
        s = has_encoder(t->meta, "clip.has_audio_encoder", &reads_sound, err);
    if (!s && reads_pictures) {
        s = read_kind(t, "clip.vision.projector_type", vision_kinds, &kind, err);
        t->vision_kind = kind == 0 ? VISION_ENCODER : VISION_PATCHES;
    }
    if (!s && reads_sound) {
        s = read_kind(t, "clip.audio.projector_type", audio_kinds, &kind, err);
        t->audio_kind = kind == 0 ? AUDIO_CONFORMER : AUDIO_FRAMES;
    }
    return !s && !reads_pictures && !reads_sound ? no_projector(t, err) : s;
}

/* A layer of the encoders that their keys do not count. */
static ingle_status check_layers(const struct tower *t, struct err *err)
{
    static const char *const key[2] = {"clip.vision.block_count", "clip.audio.block_count"};
    const int64_t n_layers[2] = {t->vision.n_layers, t->conformer.n_layers};
    for (size_t i = 0; i < model_n_names(t->model); i++) {
        const struct io_tensor *tensor;
        bool bound;
        const char *name = model_name_at(t->model, i, &tensor, &bound);
        const int which = *name == 'v' ? 0 : 1;
        if (strncmp(name, which ? "a.blk." : "v.blk.", 6) != 0)
            continue;
        const long long il = strtoll(name + 6, NULL, 10);
        if (n_layers[which] && il >= n_layers[which]) /* 0: the file says that it has none */
            return err_set(err, INGLE_FORMAT,
                           "'%s': tensor '%s' is of layer %lld, but '%s' is %lld",
                           io_path(t->file), tensor->name, il, key[which],
                           (long long)n_layers[which]);
    }
    return INGLE_OK;
}

/* The language model's width, which each part says. */
static ingle_status read_width(struct tower *t, const struct tower_options *o, struct err *err)
{
    static const char *const key[] = {"clip.vision.projection_dim", "clip.audio.projection_dim"};
    const bool has[] = {t->vision_kind != VISION_NONE, t->audio_kind != AUDIO_NONE};
    for (int i = 0; i < 2; i++) {
        uint64_t v;
        if (!has[i])
            continue;
        const ingle_status s = io_get_u64(t->meta, key[i], 1, TOWER_MAX_WIDTH, &v, err);
        if (s)
            return s;
        if (o->width && v != (uint64_t)o->width)
            return err_set(err, INGLE_UNSUP,
                           "'%s': '%s' is %llu, but the width of %s%s%s is %lld: this projector is "
                           "of another model",
                           io_path(t->file), key[i], (unsigned long long)v, o->model ? "'" : "",
                           o->model ? o->model : "the language model", o->model ? "'" : "",
                           (long long)o->width);
        if (t->width && (uint64_t)t->width != v)
            return err_set(err, INGLE_FORMAT, "'%s': '%s' is %llu, but '%s' %lld", io_path(t->file),
                           key[1], (unsigned long long)v, key[0], (long long)t->width);
        t->width = (int64_t)v;
    }
    return INGLE_OK;
}

static ingle_status bind(struct tower *t, struct err *err)
{
    struct binder b = {.t = t, .m = t->model, .prefix = "v", .il = -1, .err = err};
    const bool gguf = io_kind(t->file) == IO_GGUF;
    t->vision.channel_first = t->patches.channel_first = gguf;
    if (t->vision_kind == VISION_ENCODER)
        tower_bind_vision(&b, &t->vision);
    else if (t->vision_kind == VISION_PATCHES)
        tower_bind_patches(&b, &t->patches);
    b.prefix = "a";
    if (t->audio_kind == AUDIO_CONFORMER)
        tower_bind_conformer(&b, &t->conformer);
    else if (t->audio_kind == AUDIO_FRAMES)
        t->frames.project = tower_matrix(&b, "mm.a.input_projection.weight", t->width, TOWER_FRAME);
    return b.s;
}

/* ---- identity ---- */

static ingle_status hash_table(const struct tower *t, const struct places *p, struct sha256 *h,
                               struct err *err)
{
    XXH3_state_t *x = p->t ? XXH3_createState() : NULL;
    uint8_t *piece = p->t ? mem_alloc(PIECE) : NULL;
    ingle_status s = INGLE_OK;
    if (!p->t)
        return INGLE_OK;
    if (!x || !piece)
        s = err_set(err, INGLE_NOMEM, "no memory to read tensor '%s'", p->t->name);
    else
        (void)XXH3_128bits_reset(x);
    for (uint64_t at = 0; !s && at < p->t->n_bytes; at += PIECE) {
        const size_t n = (size_t)num_min(PIECE, (int64_t)(p->t->n_bytes - at));
        s = io_read(t->file, p->t, at, piece, n, err);
        if (!s)
            (void)XXH3_128bits_update(x, piece, n);
    }
    if (!s) {
        const XXH128_hash_t sum = XXH3_128bits_digest(x);
        sha256_add(h, &sum, sizeof sum);
    }
    XXH3_freeState(x);
    mem_free(piece);
    return s;
}

static void hash_linear(struct sha256 *h, const struct linear *l)
{
    sha256_add(h, l->in, sizeof l->in);
    sha256_add(h, l->out, sizeof l->out);
}

static void hash_bounds(const struct tower *t, struct sha256 *h)
{
    for (int64_t i = 0; i < t->vision.n_layers; i++) {
        const struct vision_layer *l = &t->vision.layer[i];
        const struct linear *all[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            hash_linear(h, all[k]);
    }
    for (int64_t i = 0; i < t->conformer.n_layers; i++) {
        const struct conformer_layer *l = &t->conformer.layer[i];
        const struct linear *all[] = {&l->q,        &l->k,         &l->v,        &l->o,
                                      &l->pw1,      &l->pw2,       &l->ff[0].up, &l->ff[0].down,
                                      &l->ff[1].up, &l->ff[1].down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            hash_linear(h, all[k]);
    }
}

static ingle_status make_digest(struct tower *t, struct err *err)
{
    struct sha256 h;
    uint64_t sum;
    sha256_init(&h);
    const char *numerics = device_numerics_name(t->d);
    const int64_t shape[] = {t->vision_kind,  t->audio_kind,       t->width,
                             t->vision.patch, t->vision.pool,      t->vision.n_heads,
                             t->patches.side, t->conformer.n_heads};
    sha256_add(&h, "ingle-tower-1", 13);
    sha256_add(&h, numerics, strlen(numerics) + 1);
    sha256_add(&h, shape, sizeof shape);
    hash_bounds(t, &h);
    ingle_status s = model_sum(t->model, NULL, &sum, err);
    if (!s)
        s = hash_table(t, &t->vision.places, &h, err);
    if (!s)
        s = hash_table(t, &t->patches.places, &h, err);
    sha256_add(&h, &sum, sizeof sum);
    sha256_end(&h, t->digest);
    return s;
}

/* ---- opening ---- */

static int side_of(const struct tower *t)
{
    return (int)(t->vision_kind == VISION_ENCODER   ? t->vision.patch * t->vision.pool
                 : t->vision_kind == VISION_PATCHES ? t->patches.side
                                                    : 0);
}

static int64_t most_blocks(const struct tower *t)
{
    return t->vision_kind == VISION_ENCODER   ? t->vision.places.n / t->vision.pool
           : t->vision_kind == VISION_PATCHES ? t->patches.places.n
                                              : 0;
}

/* What the largest picture and the longest sound need. */
static void plan(struct tower *t)
{
    size_t most = 0;
    struct pass p = {.t = t, .d = t->d};
    const int64_t blocks = most_blocks(t), down = num_max(1, num_min(t->most_tokens, blocks));
    if (t->vision_kind != VISION_NONE) {
        /* rows of tables are most where a picture is a strip, all else is the same */
        const int64_t across = num_div_up(t->most_tokens, down);
        device_dry_begin(t->d);
        if (t->vision_kind == VISION_ENCODER)
            tower_see_vision(&p, &t->vision, NULL, across, down, NULL);
        else
            tower_see_patches(&p, &t->patches, NULL, across, down, NULL);
        most = device_dry_end(t->d);
    }
    if (t->audio_kind != AUDIO_NONE) {
        device_dry_begin(t->d);
        if (t->audio_kind == AUDIO_CONFORMER)
            tower_encode_mel(&p, &t->conformer, NULL, media_mel_frames(TOWER_MOST_SAMPLES), NULL);
        else
            tower_encode_frames(&p, &t->frames, NULL, TOWER_MOST_SAMPLES, NULL);
        const size_t n = device_dry_end(t->d);
        most = n > most ? n : most;
    }
    t->scratch_bytes = most;
}

static ingle_status open_tower(struct tower *t, const struct tower_options *o, struct err *err)
{
    uint64_t budget = DEFAULT_BUDGET;
    t->d = o->device;
    t->sink = o->sink;
    t->most_tokens = o->most_tokens ? o->most_tokens : TOWER_MOST_TOKENS;
    t->tile = o->tile ? num_div_up(o->tile, DEVICE_DENSE_TILE) * DEVICE_DENSE_TILE : TOWER_TILE;
    t->meta = io_metadata(t->file);
    const bool checkpoint = io_kind(t->file) == IO_SAFETENSORS;
    const char *arch;
    size_t n_arch;
    const bool own = !checkpoint && !io_meta_find(t->meta, "clip.has_vision_encoder") &&
                     !io_meta_find(t->meta, "clip.has_audio_encoder") && tower_is_in(t->file) &&
                     !io_get_str(t->meta, "general.architecture", &arch, &n_arch, NULL) &&
                     n_arch == 6 && !memcmp(arch, "gemma4", 6);
    ingle_status s = checkpoint ? read_config(t, err) : own ? own_keys(t, err) : INGLE_OK;
    if (!s)
        s = read_kinds(t, err);
    if (!s)
        s = read_width(t, o, err);
    if (!s)
        s = tower_match_kinds(t, o, err);
    if (!s && io_meta_find(t->meta, "clip.vision.default_tokens"))
        s = io_get_u64(t->meta, "clip.vision.default_tokens", 1, 1 << 20, &budget, err);
    t->budget = (int64_t)budget;
    if (!s)
        s = model_create(&t->model, t->file, t->d, checkpoint ? tower_rename : NULL, t->sink, err);
    if (!s) {
        model_floats_only(t->model);
        s = bind(t, err);
    }
    if (!s)
        s = tower_match_tensors(t, o, err);
    if (!s)
        s = check_layers(t, err);
    if (!s && !o->check)
        s = model_load(t->model, err);
    if (!s && !o->check)
        s = make_digest(t, err);
    if (!s)
        plan(t);
    return s;
}

ingle_status tower_open_file(struct tower **out, struct io_file *file,
                             const struct tower_options *o, struct err *err)
{
    struct tower *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_set(err, INGLE_NOMEM, "no memory for encoders");
    t->file = file;
    const ingle_status s = open_tower(t, o, err);
    if (s) {
        if (s != INGLE_NOMEM && err && !strstr(err->msg, io_path(file)))
            err_prefix(err, "'%s'", io_path(file));
        tower_close(t);
    } else {
        *out = t;
    }
    return s;
}

ingle_status tower_open(struct tower **out, const char *path, const struct tower_options *o,
                        struct err *err)
{
    struct io_file *file;
    ingle_status s = io_open(&file, path, o->sink, err);
    if (s)
        return s;
    s = tower_open_file(out, file, o, err);
    if (s)
        io_close(file);
    else
        (*out)->owns_file = true;
    return s;
}

void tower_close(struct tower *t)
{
    if (!t)
        return;
    tower_release_vision(&t->vision);
    tower_release_conformer(&t->conformer);
    mem_free(t->patches.bias);
    model_free(t->model);
    io_meta_free(t->config);
    if (t->owns_file)
        io_close(t->file);
    mem_free(t);
}

void tower_describe(const struct tower *t, struct str *out)
{
    if (t->vision_kind) {
        str_addf(out, "pictures (%s, ", tower_vision_name(t->vision_kind));
        if (t->vision_kind == VISION_ENCODER)
            str_addf(out, "%lld layers, ", (long long)t->vision.n_layers);
        str_addf(out, "blocks of %d x %d pixels, %lld soft tokens)", side_of(t), side_of(t),
                 (long long)t->budget);
    }
    if (t->audio_kind) {
        str_addf(out, "%ssound (%s", t->vision_kind ? ", " : "", tower_audio_name(t->audio_kind));
        if (t->audio_kind == AUDIO_CONFORMER)
            str_addf(out, ", %lld layers", (long long)t->conformer.n_layers);
        str_addf(out, ", 25 soft tokens a second)");
    }
    str_addf(out, ", width %lld", (long long)t->width);
}

void tower_info(const struct tower *t, struct tower_info *out)
{
    *out = (struct tower_info){
        .pictures = t->vision_kind != VISION_NONE,
        .sound = t->audio_kind != AUDIO_NONE,
        .picture_kind = tower_vision_name(t->vision_kind),
        .sound_kind = tower_audio_name(t->audio_kind),
        .path = io_path(t->file),
        .width = t->width,
        .side = side_of(t),
        .most_blocks = most_blocks(t),
        .budget = t->budget,
        .weight_bytes = model_bytes(t->model),
        .table_bytes = t->table_bytes,
        .scratch_bytes = t->scratch_bytes,
    };
}

const uint8_t *tower_digest(const struct tower *t)
{
    return t->digest;
}

ingle_status tower_reserve(struct tower *t, struct err *err)
{
    size_t n;
    if (!num_add(device_arena_bytes(t->d), t->scratch_bytes, &n))
        return err_set(err, INGLE_LIMIT, "encoders need %zu bytes of scratch", t->scratch_bytes);
    return device_arena_reserve(t->d, n, err);
}

void tower_tap(struct tower *t, tower_tap_fn *fn, void *arg)
{
    t->tap = fn;
    t->tap_arg = arg;
}

/* ---- runs ---- */

bool tower_step(struct pass *p)
{
    p->done++;
    if (!p->run || !p->run->step || !device_runs(p->d))
        return !p->cancelled;
    struct device_suspended suspended;
    pool_leave(device_pool(p->d));
    device_suspend(p->d, &suspended);
    p->cancelled =
        p->run->step(p->run->arg, (double)p->done / (double)num_max(p->done, p->all)) != 0;
    device_resume(p->d, &suspended);
    pool_enter(device_pool(p->d));
    return !p->cancelled;
}

void tower_see(const struct pass *p, int64_t row, struct rows rows, const char *format, ...)
{
    char name[TOWER_NAME];
    va_list args;
    if (!p->t->tap || !device_runs(p->d))
        return;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    p->t->tap(p->t->tap_arg, name, row, rows);
}

static void run_begin(struct pass *p, struct tower *t, const struct tower_run *run, int64_t steps)
{
    *p = (struct pass){.t = t, .d = t->d, .run = run, .all = steps};
    pool_enter(device_pool(t->d));
    device_set_between(t->d, run ? run->between : NULL);
    device_begin(t->d, run ? run->cancel : NULL);
}

static ingle_status run_end(struct pass *p, struct err *err)
{
    const ingle_status s = device_status(p->d, err);
    device_set_between(p->d, NULL);
    pool_leave(device_pool(p->d));
    return !s && p->cancelled ? err_set(err, INGLE_CANCEL, "cancelled") : s;
}

void tower_matmul(struct device *d, const struct device_matrix *w, struct rows x, struct rows y)
{
    device_matmul(d, &(struct device_product){w, 0, x, y, NULL}, 1);
}

void tower_apply(struct pass *p, const struct linear *l, struct rows x, struct rows y)
{
    const size_t mark = device_mark(p->d);
    struct rows in = x;
    if (l->clamps) {
        in = device_rows(p->d, x.n, x.width);
        device_clamp(p->d, in, x, l->in[0], l->in[1]);
    }
    tower_matmul(p->d, l->w, in, y);
    if (l->clamps)
        device_clamp(p->d, y, y, l->out[0], l->out[1]);
    device_release(p->d, mark);
}

struct addition {
    struct rows x;
    const float *v;
};

static void add_row(const struct kern_table *k, void *arg, int64_t i)
{
    const struct addition *a = arg;
    k->math.add(a->x.at + i * a->x.stride, a->v, a->x.width);
}

void tower_add(struct pass *p, struct rows x, const float *v)
{
    struct addition a = {x, v};
    device_each(p->d, x.n, x.width, add_row, &a);
}

void tower_project(struct pass *p, const struct device_matrix *w, struct rows x, int64_t row,
                   float *soft)
{
    for (int64_t i = 0; i < x.n; i += p->t->tile) {
        const struct rows from = rows_slice(x, i, num_min(p->t->tile, x.n - i));
        const size_t mark = device_mark(p->d);
        struct rows n = device_rows(p->d, from.n, x.width),
                    y = device_rows(p->d, from.n, device_matrix_out(w));
        device_norm(p->d, n, from, NULL, 1, 1e-6f);
        tower_matmul(p->d, w, n, y);
        tower_see(p, row + i, y, "soft");
        for (int64_t r = 0; r < y.n && device_runs(p->d); r++)
            memcpy(soft + (row + i + r) * y.width, y.at + r * y.stride,
                   (size_t)y.width * sizeof *soft);
        device_release(p->d, mark);
    }
}

/* ---- pictures ---- */

int64_t tower_picture_tokens(const struct tower *t, int width, int height)
{
    const int side = side_of(t);
    return side && width > 0 && height > 0 ? (int64_t)(width / side) * (height / side) : 0;
}

static ingle_status check_sides(const struct tower *t, int width, int height, struct err *err)
{
    const int side = side_of(t);
    const int64_t most = most_blocks(t) * side;
    if (!side)
        return err_set(err, INGLE_UNSUP, "'%s' has no encoder for pictures", io_path(t->file));
    if (width < side || height < side || width % side || height % side)
        return err_set(err, INGLE_ARG, "a picture of %d x %d: expected multiples of %d", width,
                       height, side);
    if (width > most || height > most)
        return err_set(err, INGLE_LIMIT,
                       "a picture of %d x %d: '%s' has places for %lld pixels across and down",
                       width, height, io_path(t->file), (long long)most);
    if (tower_picture_tokens(t, width, height) > t->most_tokens)
        return err_set(
            err, INGLE_LIMIT, "a picture of %d x %d is %lld soft tokens, the limit is %lld", width,
            height, (long long)tower_picture_tokens(t, width, height), (long long)t->most_tokens);
    return INGLE_OK;
}

ingle_status tower_picture(struct tower *t, const unsigned char *rgb, int width, int height,
                           float *soft, const struct tower_run *run, struct err *err)
{
    ingle_status s = check_sides(t, width, height, err);
    if (s)
        return s;
    const int64_t across = width / side_of(t), down = height / side_of(t);
    struct pass p;
    const int64_t steps = t->vision_kind == VISION_ENCODER ? tower_vision_steps(t, across * down)
                                                           : num_div_up(across * down, t->tile);
    run_begin(&p, t, run, steps);
    if (t->vision_kind == VISION_ENCODER)
        tower_see_vision(&p, &t->vision, rgb, across, down, soft);
    else
        tower_see_patches(&p, &t->patches, rgb, across, down, soft);
    return run_end(&p, err);
}

/* ---- sound ---- */

int64_t tower_sound_tokens(const struct tower *t, int64_t n)
{
    return t->audio_kind == AUDIO_NONE || n < 1 || n > TOWER_MOST_SAMPLES
               ? 0
               : media_sound_tokens((size_t)n, t->audio_kind == AUDIO_CONFORMER);
}

static ingle_status encode_sound(struct tower *t, const float *samples, int64_t n, float *soft,
                                 const struct tower_run *run, struct err *err)
{
    const int frames = media_mel_frames((size_t)n);
    float *mel = t->audio_kind == AUDIO_CONFORMER
                     ? mem_calloc((size_t)frames * MEDIA_MEL, sizeof *mel)
                     : NULL;
    struct pass p;
    if (t->audio_kind == AUDIO_CONFORMER) {
        ingle_status s = mel ? media_mel(samples, (size_t)n, mel, err)
                             : err_set(err, INGLE_NOMEM, "no memory for %d frames", frames);
        if (s) {
            mem_free(mel);
            return s;
        }
        run_begin(&p, t, run, tower_conformer_steps(&t->conformer));
        tower_encode_mel(&p, &t->conformer, mel, frames, soft);
    } else {
        run_begin(&p, t, run, 1);
        tower_encode_frames(&p, &t->frames, samples, n, soft);
    }
    const ingle_status s = run_end(&p, err);
    mem_free(mel);
    return s;
}

ingle_status tower_sound(struct tower *t, const float *samples, int64_t n, float *soft,
                         const struct tower_run *run, struct err *err)
{
    if (t->audio_kind == AUDIO_NONE)
        return err_set(err, INGLE_UNSUP, "'%s' has no encoder for sound", io_path(t->file));
    if (n > TOWER_MOST_SAMPLES)
        return err_set(err, INGLE_LIMIT, "sound of %.1f s, the limit is %d s",
                       (double)n / TOWER_RATE, TOWER_MOST_SAMPLES / TOWER_RATE);
    if (tower_sound_tokens(t, n) < 1)
        return err_set(err, INGLE_ARG, "sound of %lld samples is no soft token: at least %d",
                       (long long)n, t->audio_kind == AUDIO_FRAMES ? 1 : 161);
    return encode_sound(t, samples, n, soft, run, err);
}

/* ---- work ---- */

double tower_picture_work(const struct tower *t, int64_t n)
{
    const double tokens = (double)n, h = (double)t->width;
    if (t->vision_kind == VISION_PATCHES)
        return tokens * (double)t->patches.d *
               ((double)(3 * t->patches.side * t->patches.side) + h);
    if (t->vision_kind != VISION_ENCODER)
        return 0;
    const struct vision *v = &t->vision;
    const double d = (double)v->d, rows = tokens * (double)(v->pool * v->pool);
    return rows * ((double)v->n_layers * (4 * d * d + 3 * d * (double)v->n_ff + 2 * rows * d) +
                   d * (double)(3 * v->patch * v->patch)) +
           tokens * d * h;
}

double tower_sound_work(const struct tower *t, int64_t n)
{
    const double tokens = (double)n, h = (double)t->width;
    if (t->audio_kind == AUDIO_FRAMES)
        return tokens * TOWER_FRAME * h;
    if (t->audio_kind != AUDIO_CONFORMER)
        return 0;
    const struct conformer *c = &t->conformer;
    const double d = (double)c->d, c0 = (double)c->channels[0], c1 = (double)c->channels[1];
    const double conv = 2 * TOWER_MELS / 2 * 9 * c0 + TOWER_MELS / 4 * 9 * c0 * c1;
    const double layer = 4 * d * (double)c->n_ff + 4 * d * d + 3 * d * d + 3 * 12 * d + 5 * d;
    return tokens * (conv + TOWER_MELS / 4 * c1 * d + (double)c->n_layers * layer +
                     d * (double)c->d_out + (double)c->d_out * h);
}
