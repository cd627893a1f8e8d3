/* SPDX-License-Identifier: Apache-2.0 */
/* media - pictures and sounds: from what comes to what stands in a prompt. */
#include "engine/engine.h"
#include "engine/media.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/sha256.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- one medium ---- */

static const char *name_of(const struct ingle_media *in)
{
    return in->name ? in->name : in->kind == INGLE_MEDIA_AUDIO || in->samples ? "sound" : "picture";
}

static ingle_status check_media(const struct ingle_media *in, struct err *err)
{
    static const int32_t budgets[] = {INGLE_MEDIA_AUTO, INGLE_MEDIA_BUDGET, 70, 140, 280, 560,
                                      1120};
    const int n_given = (in->bytes != NULL) + (in->rgb != NULL) + (in->samples != NULL);
    bool known = false;
    if (n_given != 1)
        return err_set(err, INGLE_ARG, "%s: %d of bytes, rgb and samples are given, expected one",
                       name_of(in), n_given);
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        known |= in->budget == budgets[i];
    if (!known)
        return err_set(err, INGLE_ARG,
                       "%s: a budget of %d soft tokens is none of 70, 140, 280, 560, 1120",
                       name_of(in), in->budget);
    if ((in->rgb && in->kind == INGLE_MEDIA_AUDIO) ||
        (in->samples && in->kind == INGLE_MEDIA_IMAGE))
        return err_set(err, INGLE_ARG, "%s: a %s is wanted, but a %s is given", name_of(in),
                       in->rgb ? "sound" : "picture", in->rgb ? "picture" : "sound");
    return INGLE_OK;
}

/* ---- the encoders ---- */

enum { DEFAULT_CACHE = 256 << 20, PICTURES = 16, MOST_SOFT = 1120 };

struct engine_media {
    struct ingle_engine *e;
    struct tower *tower;
    struct tower_info info;
    struct media_decoder *decoder;
    struct io_file *file;  /* owned: the built-in encoders; or NULL */
    char *path;
    int32_t budget;        /* INGLE_MEDIA_AUTO, or soft tokens */
    uint64_t cache_bytes;  /* at most */
    pthread_mutex_t lock;
    struct ingle_medium *first;    /* Sync: lock; all that there are */
    uint64_t clock, bytes;         /* Sync: lock; bytes of rows */
    struct ingle_media_counts counts; /* Sync: lock */
};

static const char *why_not(const struct ingle_engine *e)
{
    return e->media_why[0] ? e->media_why : "its encoders are not there";
}

static ingle_status find_tower(struct ingle_engine *e, const struct ingle_engine_options *o,
                               char **path, struct err *err)
{
    const bool is_auto = !o->mmproj || strcmp(o->mmproj, "auto") == 0;
    *path = NULL;
    if (o->mmproj && strcmp(o->mmproj, "off") == 0) {
        snprintf(e->media_why, sizeof e->media_why, "--mmproj is off");
        return INGLE_OK;
    }
    if (strcmp(e->family->arch, "gemma4") != 0) {
        snprintf(e->media_why, sizeof e->media_why, "there are encoders for Gemma 4 only");
        return is_auto ? INGLE_OK
                       : err_set(err, INGLE_UNSUP,
                                 "'%s': encoders of pictures and sound are for Gemma 4, the model "
                                 "'%s' is none",
                                 o->mmproj, e->model->path);
    }
    if (!is_auto) {
        *path = mem_strdup(o->mmproj);
        return *path ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a path");
    }
    struct err none;
    if (e->model->built_in)
        return INGLE_OK;
    const ingle_status st = tower_find(e->model->path, path, &none);
    if (st && st != INGLE_NOTFOUND && st != INGLE_IO)
        return err_set(err, st, "%s", none.msg);
    if (st)
        snprintf(e->media_why, sizeof e->media_why, "it has no encoders, nor has a file "
                                                    "*mmproj*.gguf beside it (--mmproj FILE)");
    return INGLE_OK;
}

/* check: only what it is, which takes no time. */
static ingle_status open_tower(struct engine_media *m, bool check, struct err *err)
{
    struct ingle_engine *e = m->e;
    const struct tower_host host = {.size = e->info.size_label,
                                    .per_layer = !e->info.large,
                                    .experts = e->info.n_experts > 0};
    /* the model's own file is open already, and its own encoders are those that it has */
    const bool own = !m->path || strcmp(m->path, e->model->path) == 0;
    const struct tower_options o = {.device = e->device,
                                    .width = e->info.n_embd,
                                    .model = e->model->path,
                                    .host = own ? NULL : &host,
                                    .most_tokens = MOST_SOFT,
                                    .check = check,
                                    .sink = &e->sink};
    ingle_status st = INGLE_OK;
    if (!m->path && e->model->built_in && !m->file)
        st = io_open_memory(&m->file, "encoders of nano-gemma4 (built in)", engine_nano_encoders,
                            (size_t)(engine_nano_encoders_end - engine_nano_encoders), &e->sink,
                            err);
    if (!st)
        st = m->file ? tower_open_file(&m->tower, m->file, &o, err)
             : own   ? tower_open_file(&m->tower, e->model->file, &o, err)
                     : tower_open(&m->tower, m->path, &o, err);
    if (!st)
        tower_info(m->tower, &m->info);
    return st;
}

static ingle_status check_options(const struct ingle_engine_options *o, struct err *err)
{
    if (o->image_tokens && o->image_tokens != INGLE_MEDIA_AUTO && !media_is_budget(o->image_tokens))
        return err_set(err, INGLE_ARG,
                       "image_tokens is %d, none of 70, 140, 280, 560, 1120, %d (auto) and 0",
                       o->image_tokens, INGLE_MEDIA_AUTO);
    return INGLE_OK;
}

/* A file that nobody named: text needs none, so it is a report, and what a picture's error says. */
static ingle_status without(struct ingle_engine *e, ingle_status st, struct err *err)
{
    if (st != INGLE_UNSUP && st != INGLE_FORMAT && st != INGLE_LIMIT)
        return st;
    snprintf(e->media_why, sizeof e->media_why, "%.*s", (int)sizeof e->media_why - 1, err->msg);
    report(&e->sink, INGLE_REPORT_WARN, "encoders", e->model->path,
           "there will be no pictures and no sound: %s", err->msg);
    return INGLE_OK;
}

ingle_status engine_media_prepare(struct ingle_engine *e, const struct ingle_engine_options *o,
                                  struct err *err)
{
    char *path;
    ingle_status st = check_options(o, err);
    if (!st)
        st = find_tower(e, o, &path, err);
    if (st || (!path && (e->media_why[0] || !e->model->built_in)))
        return st;
    struct engine_media *m = mem_zalloc(sizeof *m);
    if (!m) {
        mem_free(path);
        return err_set(err, INGLE_NOMEM, "no memory for encoders");
    }
    pthread_mutex_init(&m->lock, NULL);
    m->e = e;
    m->path = path;
    m->cache_bytes = (uint64_t)num_min(
        DEFAULT_CACHE, PICTURES * MOST_SOFT * e->info.n_embd * (int64_t)sizeof(float));
    if (o->media_cache)
        m->cache_bytes = o->media_cache;
    st = open_tower(m, true, err);
    if (st) {
        engine_media_free(m);
        return o->mmproj && strcmp(o->mmproj, "auto") != 0 ? st : without(e, st, err);
    }
    m->budget = o->image_tokens ? o->image_tokens : (int32_t)m->info.budget;
    m->counts.budget_bytes = m->cache_bytes;
    e->media = m;
    e->media_why[0] = 0;
    return INGLE_OK;
}

static void end(struct ingle_medium *m)
{
    union {
        const float *in;
        float *out;
    } rows = {m->soft.rows};
    mem_free(rows.out);
    media_picture_release(&m->picture);
    media_sound_release(&m->sound);
    mem_free(m);
}

void engine_media_free(struct engine_media *m)
{
    if (!m)
        return;
    for (struct ingle_medium *x = m->first, *next; x; x = next) {
        next = x->next;
        end(x);
    }
    media_decoder_free(m->decoder);
    tower_close(m->tower);
    io_close(m->file);
    pthread_mutex_destroy(&m->lock);
    mem_free(m->path);
    mem_free(m);
}

uint64_t engine_media_bytes(const struct ingle_engine *e)
{
    return e->media ? e->media->info.weight_bytes + e->media->info.scratch_bytes : 0;
}

uint64_t engine_media_cache_bytes(const struct ingle_engine *e)
{
    return e->media ? e->media->cache_bytes : 0;
}

int64_t engine_media_rows(const struct ingle_engine *e)
{
    return e->media && e->media->info.pictures && e->info.both ? MOST_SOFT : 0;
}

ingle_status engine_media_open(struct ingle_engine *e, struct err *err)
{
    struct engine_media *m = e->media;
    if (!m)
        return INGLE_OK;
    tower_close(m->tower);
    m->tower = NULL;
    ingle_status st = open_tower(m, false, err);
    if (!st)
        st = tower_reserve(m->tower, err);
    return st ? st : media_decoder_create(&m->decoder, err);
}

void engine_media_info(const struct ingle_engine *e, struct ingle_engine_info *out)
{
    const struct engine_media *m = e->media;
    out->mmproj = "";
    out->mmproj_why = m ? "" : why_not(e);
    if (!m)
        return;
    out->sees = m->info.pictures;
    out->hears = m->info.sound;
    out->mmproj = m->info.path;
    out->mmproj_bytes = engine_media_bytes(e);
    out->image_tokens = m->budget;
    out->media_cache = m->cache_bytes;
}

/* ---- names ---- */

static void hold(struct session_medium *soft, int by);

struct ingle_medium *engine_medium_of(struct session_medium *m)
{
    return m->hold == hold ? (struct ingle_medium *)(void *)m : NULL;
}

static uint64_t bytes_of(const struct ingle_medium *m)
{
    return (uint64_t)m->soft.n * (uint64_t)m->of->info.width * sizeof(float);
}

/* With the lock. */
static void drop_rows(struct ingle_medium *m)
{
    union {
        const float *in;
        float *out;
    } rows = {m->soft.rows};
    if (!rows.in)
        return;
    mem_free(rows.out);
    m->soft.rows = NULL;
    m->of->bytes -= bytes_of(m);
}

/* With the lock: it is of no use any more. */
static void drop(struct ingle_medium *m)
{
    struct ingle_medium **at = &m->of->first;
    while (*at && *at != m)
        at = &(*at)->next;
    if (*at) /* one without data is not in the list */
        *at = m->next;
    drop_rows(m);
    end(m);
}

/* Those that nobody refers to, and rows that every step has had, the oldest first, until so many
 * bytes more have room.  With the lock; the engine thread. */
static void make_room(struct engine_media *of, uint64_t bytes)
{
    while (of->bytes + bytes > of->cache_bytes) {
        struct ingle_medium *oldest = NULL;
        for (struct ingle_medium *m = of->first; m; m = m->next)
            if (m->soft.rows && (!m->refs || m->used) && (!oldest || m->stamp < oldest->stamp))
                oldest = m;
        if (!oldest)
            return;
        if (oldest->refs)
            drop_rows(oldest);
        else
            drop(oldest);
    }
}

static void give(struct ingle_medium *m, int by)
{
    struct engine_media *of = m->of;
    pthread_mutex_lock(&of->lock);
    m->refs += by;
    if (!m->refs && !m->soft.rows)
        drop(m);
    pthread_mutex_unlock(&of->lock);
}

static void hold(struct session_medium *soft, int by)
{
    give((struct ingle_medium *)(void *)soft, by);
}

struct ingle_medium *ingle_medium_ref(struct ingle_medium *m)
{
    give(m, 1);
    return m;
}

void ingle_medium_close(struct ingle_medium *m)
{
    if (m)
        give(m, -1);
}

void ingle_medium_info(const struct ingle_medium *m, struct ingle_medium_info *out)
{
    *out = m->info;
}

/* The one with this name, or of these bytes, with a reference; NULL: there is none.  With the
 * lock. */
static struct ingle_medium *find_listed(struct engine_media *of, const uint8_t *id,
                                        const uint8_t *file)
{
    struct ingle_medium *m = of->first;
    while (m && !(id && memcmp(m->soft.id, id, MEDIA_ID_BYTES) == 0) &&
           !(file && m->has_file && memcmp(m->file, file, MEDIA_ID_BYTES) == 0))
        m = m->next;
    if (m) {
        m->refs++;
        m->stamp = ++of->clock;
    }
    return m;
}

static struct ingle_medium *find_known(struct engine_media *of, const uint8_t *id,
                                       const uint8_t *file)
{
    pthread_mutex_lock(&of->lock);
    struct ingle_medium *m = find_listed(of, id, file);
    pthread_mutex_unlock(&of->lock);
    return m;
}

/* Takes m, unless one of its name is there: that is given then. */
static struct ingle_medium *settle(struct engine_media *of, struct ingle_medium *m)
{
    pthread_mutex_lock(&of->lock);
    struct ingle_medium *known = find_listed(of, m->soft.id, NULL);
    if (!known) {
        m->refs = 1;
        m->stamp = ++of->clock;
        m->next = of->first;
        of->first = m;
    }
    pthread_mutex_unlock(&of->lock);
    if (known)
        end(m);
    return known ? known : m;
}

static bool has_data(const struct ingle_medium *m)
{
    return m->picture.rgb || m->sound.samples;
}

/* One of a file, of which only the name is known: it stands in prompts and cannot be encoded. */
static struct ingle_medium *open_named(struct engine_media *of, const struct session_medium *from)
{
    struct ingle_medium *m = mem_zalloc(sizeof *m);
    if (!m)
        return NULL;
    m->of = of;
    m->refs = 1;
    m->soft = (struct session_medium){
        .n = from->n, .token = from->token, .sound = from->sound, .hold = hold};
    memcpy(m->soft.id, from->id, sizeof m->soft.id);
    m->info = (struct ingle_medium_info){
        .kind = from->sound ? INGLE_MEDIA_AUDIO : INGLE_MEDIA_IMAGE,
        .n_soft = from->n,
        .n_tokens = from->n + 2};
    memcpy(m->info.id, from->id, sizeof m->info.id);
    return m;
}

static struct ingle_medium *medium_of_session(struct engine_media *of, struct session_medium *from)
{
    struct ingle_medium *m = engine_medium_of(from);
    if (m)
        return ingle_medium_ref(m);
    m = find_known(of, from->id, NULL);
    return m ? m : open_named(of, from);
}

ingle_status engine_media_spans(struct ingle_engine *e, const struct session *s,
                                struct ingle_span **out, size_t *n, struct err *err)
{
    const size_t n_media = session_n_media(s);
    struct ingle_span *span = mem_calloc(n_media + 1, sizeof *span);
    bool ok = span && (!n_media || e->media);
    size_t k = 0;
    while (ok && k < n_media) {
        const struct session_soft soft = session_medium_at(s, k);
        span[k] = (struct ingle_span){soft.start, soft.medium->n,
                                      medium_of_session(e->media, soft.medium)};
        ok = span[k].medium != NULL;
        k += ok;
    }
    if (ok) {
        *out = span;
        *n = n_media;
        return INGLE_OK;
    }
    while (k--)
        ingle_medium_close(span[k].medium);
    mem_free(span);
    return n_media && !e->media
               ? err_set(err, INGLE_UNSUP, "the session has %zu pictures and sounds, and the "
                         "engine no encoders: %s", n_media, why_not(e))
               : err_set(err, INGLE_NOMEM, "no memory for %zu media", n_media);
}

/* ---- from what comes ---- */

static ingle_status check_kind(const struct engine_media *m, const struct ingle_media *in,
                               enum ingle_media_kind kind, struct err *err)
{
    if (in->kind != INGLE_MEDIA_ANY && in->kind != kind)
        return err_set(err, INGLE_ARG, "%s: it is a %s, but a %s is wanted", name_of(in),
                       engine_medium_kind(kind), engine_medium_kind(in->kind));
    if (kind == INGLE_MEDIA_AUDIO ? !m->info.sound : !m->info.pictures)
        return err_set(err, INGLE_UNSUP, "%s: the model '%s' %s", name_of(in), m->e->model->path,
                       kind == INGLE_MEDIA_AUDIO ? "does not hear: its file has no encoder of sound"
                                                 : "does not see: its file has no encoder of "
                                                   "pictures");
    return INGLE_OK;
}

/* Of the picture p, which stays the caller's. */
static ingle_status see(struct engine_media *of, const struct ingle_media *in,
                        const struct media_picture *p, struct ingle_medium *m, struct err *err)
{
    int n = 0;
    int32_t budget = in->budget ? in->budget : of->budget;
    if (budget == INGLE_MEDIA_AUTO)
        budget = media_auto_budget(p->width, p->height, of->info.side);
    ingle_status st = media_prepare(p, budget, of->info.side, &m->picture, &n, err);
    if (st)
        return st;
    const int64_t across = m->picture.width / of->info.side,
                  down = m->picture.height / of->info.side;
    if (across > of->info.most_blocks || down > of->info.most_blocks)
        return err_set(err, INGLE_LIMIT,
                       "%s: %d x %d pixels are %lld x %lld blocks, the encoder has positions for "
                       "%lld",
                       name_of(in), p->width, p->height, (long long)across, (long long)down,
                       (long long)of->info.most_blocks);
    media_picture_identity(&m->picture, budget, tower_digest(of->tower), m->soft.id);
    m->info = (struct ingle_medium_info){.kind = INGLE_MEDIA_IMAGE,
                                         .n_soft = n,
                                         .width = p->width,
                                         .height = p->height,
                                         .used_width = m->picture.width,
                                         .used_height = m->picture.height,
                                         .budget = budget};
    return INGLE_OK;
}

/* Takes the samples of s. */
static ingle_status encode_sound(struct engine_media *of, const struct ingle_media *in,
                                 struct media_sound *s, struct ingle_medium *m, struct err *err)
{
    ingle_status st = media_check_samples(s->samples, s->n, name_of(in), err);
    if (st)
        return st;
    m->sound = *s;
    *s = (struct media_sound){0};
    const int64_t n = tower_sound_tokens(of->tower, (int64_t)m->sound.n);
    if (n < 1)
        return err_set(err, INGLE_ARG, "%s: %zu samples are too short for a token", name_of(in),
                       m->sound.n);
    media_sound_identity(&m->sound, tower_digest(of->tower), m->soft.id);
    m->info = (struct ingle_medium_info){.kind = INGLE_MEDIA_AUDIO,
                                         .n_soft = n,
                                         .seconds = (double)m->sound.n / MEDIA_RATE};
    return INGLE_OK;
}

static ingle_status take(struct engine_media *of, const struct ingle_media *in,
                         struct media_data *data, struct ingle_medium *m, struct err *err)
{
    union {
        const unsigned char *in;
        unsigned char *out;
    } rgb = {in->rgb};
    const struct media_picture given = {in->width, in->height, rgb.out};
    const bool sound = in->samples || (in->bytes && data->kind == MEDIA_WAV);
    ingle_status st =
        check_kind(of, in, sound ? INGLE_MEDIA_AUDIO : INGLE_MEDIA_IMAGE, err);
    if (!st && in->rgb)
        st = media_check_pixels(in->width, in->height, name_of(in), err);
    if (!st && in->samples) {
        data->sound.samples = mem_calloc(in->n_samples + 1, sizeof *data->sound.samples);
        if (!data->sound.samples)
            return err_set(err, INGLE_NOMEM, "%s: no memory for %zu samples", name_of(in),
                           in->n_samples);
        memcpy(data->sound.samples, in->samples, in->n_samples * sizeof *in->samples);
        data->sound.n = in->n_samples;
    }
    if (st)
        return st;
    return sound ? encode_sound(of, in, &data->sound, m, err)
                 : see(of, in, in->rgb ? &given : &data->picture, m, err);
}

static void hash_file(const struct ingle_media *in, int32_t budget, uint8_t *out)
{
    struct sha256 h;
    sha256_init(&h);
    sha256_add(&h, &budget, sizeof budget);
    sha256_add(&h, in->bytes, in->n_bytes);
    sha256_end(&h, out);
}

static ingle_status open_medium(struct engine_media *of, const struct ingle_media *in,
                                struct ingle_medium **out, struct err *err)
{
    struct media_data data = {MEDIA_UNKNOWN, {0, 0, NULL}, {0, NULL}};
    uint8_t file[MEDIA_ID_BYTES];
    if (in->bytes) {
        hash_file(in, in->budget ? in->budget : of->budget, file);
        struct ingle_medium *known = find_known(of, NULL, file);
        if (known) {
            const ingle_status st = check_kind(of, in, known->info.kind, err);
            if (st)
                ingle_medium_close(known);
            else
                *out = known;
            return st;
        }
    }
    struct ingle_medium *m = mem_zalloc(sizeof *m);
    if (!m)
        return err_set(err, INGLE_NOMEM, "%s: no memory", name_of(in));
    m->of = of;
    ingle_status st = INGLE_OK;
    if (in->bytes)
        st = media_decode(of->decoder, in->bytes, in->n_bytes, name_of(in), &data, err);
    if (!st)
        st = take(of, in, &data, m, err);
    media_data_release(&data);
    if (st) {
        end(m);
        return st;
    }
    const bool sound = m->info.kind == INGLE_MEDIA_AUDIO;
    m->soft.n = m->info.n_soft;
    m->soft.sound = sound;
    m->soft.token = sound ? of->e->model->media.audio : of->e->model->media.image;
    m->soft.hold = hold;
    m->info.n_tokens = m->info.n_soft + 2;
    memcpy(m->info.id, m->soft.id, sizeof m->info.id);
    m->has_file = in->bytes != NULL;
    if (m->has_file)
        memcpy(m->file, file, sizeof m->file);
    *out = settle(of, m);
    return INGLE_OK;
}

ingle_status ingle_medium_open(struct ingle_medium **out, struct ingle_engine *e,
                               const struct ingle_media *in, struct ingle_error *error)
{
    struct err err;
    const struct engine_media_ids *ids = &e->model->media;
    ingle_status st = check_media(in, &err);
    if (!st && !e->media)
        st = err_set(&err, INGLE_UNSUP, "%s: the model '%s' reads text only: %s", name_of(in),
                     e->model->path, why_not(e));
    else if (!st && (ids->image < 0 || ids->audio < 0))
        st = err_set(&err, INGLE_UNSUP,
                     "%s: the vocabulary of '%s' has no tokens for pictures and sound",
                     name_of(in), e->model->path);
    if (!st)
        st = open_medium(e->media, in, out, &err);
    return engine_say(error, st, &err);
}

/* ---- encoding ---- */

static int on_step(void *arg, double done)
{
    const struct ingle_engine *e = arg;
    return report_progress(&e->sink, "encode", done, 1) || atomic_load(&e->cancel);
}

ingle_status engine_media_encode(struct ingle_engine *e, const struct session_medium *medium,
                                 const struct tower_run *run, double *seconds, struct err *err)
{
    union {
        const struct session_medium *in;
        struct session_medium *out;
    } of = {medium};
    struct ingle_medium *m = engine_medium_of(of.out);
    struct engine_media *x = e->media;
    *seconds = 0;
    if (!m || !x || !has_data(m))
        return err_set(err, INGLE_NOTFOUND,
                       "a %s of the session is not there, only its name: it must be given again",
                       medium->sound ? "sound" : "picture");
    if (m->soft.rows)
        return INGLE_OK;
    float *rows = mem_calloc((size_t)m->soft.n, (size_t)x->info.width * sizeof *rows);
    if (!rows)
        return err_set(err, INGLE_NOMEM, "no memory for %lld soft tokens", (long long)m->soft.n);
    const struct tower_run own = {.step = on_step, .arg = e, .cancel = &e->cancel};
    const uint64_t began = clock_now();
    give(m, 1);
    ingle_status st =
        m->info.kind == INGLE_MEDIA_AUDIO
            ? tower_sound(x->tower, m->sound.samples, (int64_t)m->sound.n, rows, run ? run : &own,
                          err)
            : tower_picture(x->tower, m->picture.rgb, m->picture.width, m->picture.height, rows,
                            run ? run : &own, err);
    *seconds = (double)(clock_now() - began) * 1e-9;
    for (int64_t i = 0; !st && i < m->soft.n * x->info.width; i++)
        if (!isfinite(rows[i]))
            st = err_set(err, INGLE_NUMERIC, "soft token %lld of a %s is no number: element %lld",
                         (long long)(i / x->info.width), engine_medium_kind(m->info.kind),
                         (long long)(i % x->info.width));
    pthread_mutex_lock(&x->lock);
    if (!st) {
        make_room(x, bytes_of(m));
        m->soft.rows = rows;
        m->used = false;
        m->stamp = ++x->clock;
        x->bytes += bytes_of(m);
        x->counts.n_encoded++;
        x->counts.encoded_tokens += m->soft.n;
        x->counts.encode_seconds += *seconds;
    }
    pthread_mutex_unlock(&x->lock);
    if (st)
        mem_free(rows);
    give(m, -1);
    return st;
}

void engine_media_yielded(struct ingle_engine *e, double seconds)
{
    pthread_mutex_lock(&e->media->lock);
    e->media->counts.encode_seconds -= seconds;
    pthread_mutex_unlock(&e->media->lock);
}

ingle_status engine_media_ready(struct ingle_engine *e, const struct session *s, int64_t n,
                                struct err *err)
{
    const struct session_medium *m;
    ingle_status st = INGLE_OK;
    double seconds;
    while (!st && session_n_media(s) && (m = session_lacks(s, n)))
        st = engine_media_encode(e, m, NULL, &seconds, err);
    return st;
}

void engine_media_used(struct ingle_engine *e, const struct session *s, bool stopped)
{
    const size_t n = session_n_media(s);
    if (!n || !e->media)
        return;
    pthread_mutex_lock(&e->media->lock);
    for (size_t i = 0; i < n; i++) {
        const struct session_soft soft = session_medium_at(s, i);
        struct ingle_medium *m = engine_medium_of(soft.medium);
        if (m && soft.start + soft.medium->n <= session_length(s))
            m->used = true;
    }
    if (!stopped)
        make_room(e->media, 0);
    pthread_mutex_unlock(&e->media->lock);
}

void engine_media_count(struct ingle_engine *e, const struct session_soft *soft, size_t n_soft,
                        int64_t kept, struct ingle_usage *usage)
{
    struct engine_media *x = e->media;
    if (!x || !n_soft)
        return;
    pthread_mutex_lock(&x->lock);
    for (size_t i = 0; i < n_soft; i++) {
        const struct session_medium *m = soft[i].medium;
        const bool reused = soft[i].start + m->n <= kept;
        x->counts.n_media++;
        x->counts.n_reused += reused;
        x->counts.n_kept += !reused && m->rows;
        *(m->sound ? &x->counts.audio_tokens : &x->counts.image_tokens) += m->n + 2;
        if (usage)
            *(m->sound ? &usage->audio_tokens : &usage->image_tokens) += m->n + 2;
    }
    if (usage)
        usage->n_media = (int64_t)n_soft;
    pthread_mutex_unlock(&x->lock);
}

void ingle_engine_media(const struct ingle_engine *e, struct ingle_media_counts *out)
{
    struct engine_media *x = e->media;
    *out = (struct ingle_media_counts){0};
    if (!x)
        return;
    pthread_mutex_lock(&x->lock);
    *out = x->counts;
    out->cache_bytes = x->bytes;
    pthread_mutex_unlock(&x->lock);
}
