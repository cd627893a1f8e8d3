/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft - the drafter beside a model: in the model's own file, in a file that was named, or beside
 * the model by its name. A drafter is opened, recognised and paired from its headers alone; its
 * weights are read when it is taken.
 */
#include "engine/engine.h"
#include "engine/draft.h"
#include "engine/plan.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

static const char model_kind[] = "model"; /* a model by itself, which drafts for a larger one */

static bool is_model(const struct family_draft *k)
{
    return strcmp(k->kind, model_kind) == 0;
}

void engine_draft_free(struct engine_draft *d)
{
    if (!d)
        return;
    if (d->self)
        d->kind->free(d->self);
    model_free(d->weights);
    io_meta_free(d->own_meta);
    ingle_model_close(d->file);
    mem_free(d);
}

/* ---- one file ---- */

static ingle_status new_meta(struct engine_draft *d, struct err *err)
{
    d->own_meta = io_meta_create();
    if (!d->own_meta || io_meta_set_name(d->own_meta, d->path))
        return err_set(err, INGLE_NOMEM, "%s: no memory for its configuration", d->path);
    return INGLE_OK;
}

static ingle_status open_weights(struct engine_draft *d, const struct ingle_engine *e,
                                 model_rename_fn *rename, struct err *err)
{
    const struct ingle_model *m = d->file ? d->file : e->model;
    model_free(d->weights);
    d->weights = NULL;
    ingle_status st = model_create(&d->weights, m->file, e->device, rename, &d->sink, err);
    if (!st && m->config)
        st = model_read_scheme(d->weights, m->config, err);
    return st;
}

/* A kind other than "model" that fits, by tensors and keys. */
static const struct family_draft *fitting(const struct ingle_engine *e, const struct model *w,
                                          const struct io_meta *meta)
{
    for (const struct family_draft *const *k = family_drafts; *k; k++)
        if (!is_model(*k) && (*k)->fits(e->family, w, meta))
            return *k;
    return NULL;
}

/* A checkpoint: a drafter by its config.json, or one with its target's (a part of it, or a whole
 * model). */
static ingle_status know_checkpoint(struct engine_draft *d, const struct ingle_engine *e,
                                    struct err *err)
{
    struct json_object *config = d->file->config;
    const struct family *plain = family_by_hf_type(d->file->arch);
    d->kind = family_draft_of(e->family, NULL, NULL, config);
    ingle_status st = new_meta(d, err);
    if (st)
        return st;
    if (d->kind && !is_model(d->kind)) {
        st = d->kind->config ? d->kind->config(config, d->own_meta, &d->sink, err) : INGLE_OK;
        return st ? st : open_weights(d, e, d->kind->rename, err);
    }
    if (!plain)
        return INGLE_OK;
    st = plain->config(config, d->own_meta, &d->sink, err);
    if (!st)
        st = open_weights(d, e, plain->rename, err);
    if (!st) {
        const struct family_draft *part = fitting(e, d->weights, d->own_meta);
        d->kind = part ? part : d->kind;
    }
    return st;
}

static ingle_status know_gguf(struct engine_draft *d, const struct ingle_engine *e, struct err *err)
{
    const struct io_meta *meta = io_metadata(d->file->file);
    ingle_status st = open_weights(d, e, NULL, err);
    if (st)
        return st;
    d->kind = fitting(e, d->weights, meta);
    if (!d->kind)
        d->kind = family_draft_of(e->family, d->weights, meta, NULL);
    const struct family *plain =
        d->kind && is_model(d->kind) ? family_by_arch(d->file->arch) : NULL;
    model_rename_fn *alias = plain ? plain->alias : d->kind ? d->kind->alias : NULL;
    return alias ? open_weights(d, e, alias, err) : INGLE_OK;
}

static ingle_status same_words(const struct engine_draft *d, const struct ingle_engine *e,
                               struct err *err)
{
    char why[160];
    if (!d->file || !d->file->tokenizer || !e->model->tokenizer ||
        text_tokenizer_same(e->model->tokenizer, d->file->tokenizer, why, sizeof why))
        return INGLE_OK;
    return err_set(err, INGLE_ARG,
                   "its vocabulary is not that of the model: %s; a drafter that was made for this "
                   "model would fit",
                   why);
}

static ingle_status set_options(struct engine_draft *d, const struct ingle_engine_options *o,
                                struct err *err)
{
    static const char *const tap[] = {"late", "early", "upstream"};
    struct family_draft_options set = {
        .rule = o->draft_rule, .block = o->draft_block, .context = o->draft_ctx};
    size_t i = 0;
    while (o->draft_tap && i < 3 && strcmp(tap[i], o->draft_tap) != 0)
        i++;
    if (i == 3)
        return err_set(err, INGLE_ARG, "draft tap '%s' is none of late, early and upstream",
                       o->draft_tap);
    set.tap = (enum family_draft_tap)i;
    if (!set.rule && !set.block && !set.context && !i)
        return INGLE_OK;
    if (!d->kind->set)
        return err_set(err, INGLE_UNSUP,
                       "a drafter of the kind '%s' has no rule, block, tap or context to set",
                       d->kind->kind);
    return d->kind->set(d->self, &set, &d->info, err);
}

static ingle_status bind(struct engine_draft *d, const struct ingle_engine *e,
                         const struct io_meta *meta, const struct ingle_engine_options *o,
                         struct err *err)
{
    const struct family_draft_target target = {e->family, e->self, &e->info};
    ingle_status st = same_words(d, e, err);
    if (!st)
        st = d->kind->bind(&d->self, &target, d->weights, meta, &d->info, err);
    if (!st)
        st = set_options(d, o, err);
    if (st)
        return st;
    d->weight_bytes = model_bytes(d->weights);
    d->form = engine_meta_hash(
        meta, "",
        XXH3_64bits_withSeed(d->kind->kind, strlen(d->kind->kind), model_identity(d->weights)));
    return INGLE_OK;
}

static ingle_status open_file(struct engine_draft *d, const struct ingle_engine *e,
                              const char *path, const struct ingle_engine_options *o,
                              struct err *err)
{
    struct ingle_error error;
    ingle_status st = ingle_model_open(&d->file, path, NULL, &error);
    if (st)
        return err_set(err, st, "%s", error.text);
    d->path = d->file->path;
    if (!d->file->file || !io_n_tensors(d->file->file))
        return err_set(err, INGLE_UNSUP, "%s: has no weights that could draft", d->path);
    const bool gguf = io_kind(d->file->file) == IO_GGUF;
    st = gguf ? know_gguf(d, e, err) : know_checkpoint(d, e, err);
    if (!st && !d->kind)
        st = err_set(err, INGLE_UNSUP,
                     "no drafter of a known kind (%s '%s'): a DFlash, DSpark or MTP network that "
                     "was made for "
                     "this model would fit, or a smaller model with its vocabulary",
                     gguf ? "architecture" : "model_type", d->file->arch);
    if (!st)
        st = bind(d, e, d->own_meta ? d->own_meta : io_metadata(d->file->file), o, err);
    if (st && st != INGLE_NOMEM)
        err_prefix(err, "%s: does not draft for %s", d->path, e->model->path);
    return st;
}

/* The part of the target's own file that drafts; INGLE_NOTFOUND: it has none. */
static ingle_status open_own(struct engine_draft *d, const struct ingle_engine *e,
                             const struct ingle_engine_options *o, struct err *err)
{
    const struct io_meta *meta = e->own_meta ? e->own_meta : io_metadata(e->model->file);
    struct json_object *config = e->model->config;
    ingle_status st = INGLE_OK;
    d->path = e->model->path;
    d->kind = fitting(e, e->weights, meta);
    if (!d->kind)
        return err_set(err, INGLE_NOTFOUND, "no drafter is in the model's file");
    if (config && d->kind->named && d->kind->named(config) && d->kind->config) {
        st = new_meta(d, err);
        if (!st)
            st = d->kind->config(config, d->own_meta, &d->sink, err);
        meta = d->own_meta;
    }
    model_rename_fn *rename = config ? d->kind->rename : d->kind->alias;
    if (!rename)
        rename = config ? e->family->rename : e->family->alias;
    if (!st)
        st = open_weights(d, e, rename, err);
    if (!st)
        st = bind(d, e, meta, o, err);
    if (st && st != INGLE_NOMEM)
        err_prefix(err, "%s: its own draft block", d->path);
    return st;
}

/* What the layers of stages have comes here only for rows that are requested. */
static ingle_status check_stages(const struct engine_draft *d, const struct ingle_engine_options *o,
                                 struct err *err)
{
    if (!o->stages || !d->kind->reads_target)
        return INGLE_OK;
    return err_set(err, INGLE_UNSUP,
                   "'%s': a drafter of the kind '%s' reads keys and values of the model's last "
                   "layers, which lie at stages (--stages)",
                   d->path, d->kind->kind);
}

/* path NULL: the target's own file. */
static ingle_status open_draft(struct engine_draft **out, const struct ingle_engine *e,
                               const char *path, const struct ingle_engine_options *o,
                               struct err *err)
{
    struct engine_draft *d = mem_zalloc(sizeof *d);
    if (!d)
        return err_set(err, INGLE_NOMEM, "no memory for a drafter");
    ingle_status st = path ? open_file(d, e, path, o, err) : open_own(d, e, o, err);
    if (!st)
        st = check_stages(d, o, err);
    if (st)
        engine_draft_free(d);
    else
        *out = d;
    return st;
}

/* ---- which one ---- */

enum { MOST = 16 };

struct choice {
    struct ingle_engine *e;
    const struct ingle_engine_options *o;
    const char *method;
    struct engine_draft *at[MOST];
    int n;
    bool folder;      /* what comes is in a folder, among others */
    ingle_status st;  /* of the first that did not fit, and why */
    struct err why;
    char other[160]; /* kinds that fit and are not the method that was requested */
};

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* "dflash" stands for both of its generations. */
static bool is_method(const struct family_draft *k, const char *method)
{
    return strcmp(method, "auto") == 0 || strncmp(k->kind, method, strlen(method)) == 0;
}

static ingle_status consider(struct choice *c, const char *path, struct err *err)
{
    struct engine_draft *d = NULL;
    struct err why;
    if (c->n == MOST || (path && same_file(path, c->e->model->path)))
        return INGLE_OK;
    const ingle_status st = open_draft(&d, c->e, path, c->o, &why);
    if (st == INGLE_NOMEM)
        return err_set(err, st, "%s", why.msg);
    if (st) {
        if (!c->st && st != INGLE_NOTFOUND) {
            c->st = st;
            c->why = why;
        }
        return INGLE_OK;
    }
    if (!is_method(d->kind, c->method) ||
        (c->folder && is_model(d->kind) && d->weight_bytes >= c->e->weight_bytes)) {
        const size_t at = strlen(c->other);
        if (!strstr(c->other, d->kind->kind))
            snprintf(c->other + at, sizeof c->other - at, "%s%s", at ? ", " : "", d->kind->kind);
        engine_draft_free(d);
        return INGLE_OK;
    }
    c->at[c->n++] = d;
    return INGLE_OK;
}

static ingle_status consider_path(void *arg, const char *path, struct err *err)
{
    return consider(arg, path, err);
}

/* Beside a model a whole model is another model. */
static ingle_status consider_sibling(void *arg, const char *path, struct err *err)
{
    struct choice *c = arg;
    const int n = c->n;
    const ingle_status st = consider(c, path, err);
    if (!st && c->n > n && is_model(c->at[n]->kind)) {
        engine_draft_free(c->at[n]);
        c->n = n;
    }
    return st;
}

/* Better ones first: by what their kinds get accepted, then by form.  A round waits for memory: of
 * the forms of one network that with 8 bits is the fastest that guesses as well; smaller ones
 * follow, then wider ones. */
static int rank(const struct family_draft *k)
{
    static const char *const order[] = {"dspark", "dflash2", "dflash", "mtp"};
    int i = 0;
    while (i < 4 && strcmp(order[i], k->kind) != 0)
        i++;
    return i;
}

static double bits_of(const struct engine_draft *d)
{
    if (!d->file)
        return 8;
    struct ingle_model_info info;
    ingle_model_info(d->file, &info);
    return info.n_params ? (double)info.file_bytes * 8 / (double)info.n_params : 32;
}

static bool is_better(const struct engine_draft *a, const struct engine_draft *b)
{
    const double wide = 9.5, x = bits_of(a), y = bits_of(b);
    if (rank(a->kind) != rank(b->kind))
        return rank(a->kind) < rank(b->kind);
    if ((x > wide) != (y > wide))
        return x < y;
    return x > wide ? x < y : x > y;
}

static void sort(struct choice *c)
{
    for (int i = 1; i < c->n; i++)
        for (int k = i; k > 0 && is_better(c->at[k], c->at[k - 1]); k--) {
            struct engine_draft *t = c->at[k];
            c->at[k] = c->at[k - 1];
            c->at[k - 1] = t;
        }
}

static void names_of(const struct choice *c, const struct engine_draft *but, char *out, size_t n)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < c->n && at + 1 < n; i++) {
        const char *path = c->at[i]->path, *slash = strrchr(path, '/');
        if (c->at[i] != but)
            at += (size_t)snprintf(out + at, n - at, "%s%s (%s)", at ? ", " : "",
                                   slash && slash[1] ? slash + 1 : path, c->at[i]->kind->kind);
    }
}

/* Takes the first that suits; the last one that was named, in any case: the plan will say what is
 * missing. */
static void take(struct choice *c, bool named, engine_suits_fn *suits)
{
    struct ingle_engine *e = c->e;
    char rest[240];
    int i = 0;
    for (; i < c->n; i++) {
        e->draft = c->at[i];
        if ((named && c->n == 1) || suits(e, c->o))
            break;
    }
    if (i == c->n && named)
        e->draft = c->at[i = c->n - 1];
    else if (i == c->n)
        e->draft = NULL;
    names_of(c, e->draft, rest, sizeof rest);
    if (e->draft)
        report(&e->sink, INGLE_REPORT_NOTE, "draft", e->draft->path,
               "%s drafts up to %lld tokens%s%s", e->draft->kind->kind,
               (long long)e->draft->info.most, c->n > 1 ? "; not used: " : "", rest);
    else
        snprintf(e->draft_why, sizeof e->draft_why, "the memory does not hold a drafter: %.180s",
                 rest);
    for (int k = 0; k < c->n; k++)
        if (k != i)
            engine_draft_free(c->at[k]);
    c->n = 0;
}

static ingle_status nothing(const struct choice *c, bool named, struct err *err)
{
    struct ingle_engine *e = c->e;
    if (c->other[0] && strcmp(c->method, "auto") != 0)
        return err_set(err, INGLE_NOTFOUND,
                       "no drafter of the method '%s' is at hand; there is: %s", c->method,
                       c->other);
    if (c->st && (named || strcmp(c->method, "auto") != 0))
        return err_set(err, c->st, "%s", c->why.msg);
    if (named)
        return err_set(err, INGLE_NOTFOUND, "no drafter for %s is in what '--draft' names",
                       e->model->path);
    if (strcmp(c->method, "auto") != 0)
        return err_set(err, INGLE_NOTFOUND,
                       "no drafter of the method '%s' is in the model's file or beside it: name "
                       "one with '--draft'",
                       c->method);
    if (c->st)
        report(&e->sink, INGLE_REPORT_WARN, "draft", e->model->path, "no network drafts: %s",
               c->why.msg);
    snprintf(e->draft_why, sizeof e->draft_why, "%.230s",
             c->st ? c->why.msg : "no drafter is in the model's file or beside it");
    return INGLE_OK;
}

/* What one '--draft' names. */
static ingle_status consider_named(struct choice *c, const char *path, struct err *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return err_set(
            err, INGLE_NOTFOUND, "option '--draft': there is no file or folder '%s'%s", path,
            strspn(path, "0123456789") == strlen(path) ? "; a number of tokens is --draft-max"
                                                       : "");
    c->folder = S_ISDIR(st.st_mode);
    if (!c->folder && same_file(path, c->e->model->path))
        return consider(c, NULL, err);
    return c->folder ? engine_each_drafter(path, consider_path, c, err) : consider(c, path, err);
}

static ingle_status gather(struct choice *c, bool *named, struct err *err)
{
    const struct ingle_engine_options *o = c->o;
    bool automatic = o->n_draft == 0;
    ingle_status st = INGLE_OK;
    for (size_t i = 0; !st && i < o->n_draft; i++) {
        if (strcmp(o->draft[i], "auto") == 0) {
            automatic = true;
            continue;
        }
        *named = true;
        const int before = c->n;
        st = consider_named(c, o->draft[i], err);
        if (!st && c->n == before && c->st) /* each that is named must do */
            st = err_set(err, c->st, "%s", c->why.msg);
    }
    c->folder = true;
    if (!st && automatic)
        st = consider(c, NULL, err);
    if (!st && automatic && c->e->model->file && !(c->n && *named))
        st = engine_each_sibling(c->e->model->path, consider_sibling, c, err);
    return st;
}

/* '--draft ngram' is '--draft-method ngram'. */
static const char *method_of(const struct ingle_engine_options *o)
{
    if (o->n_draft == 1 && strcmp(o->draft[0], "ngram") == 0)
        return "ngram";
    return o->draft_method ? o->draft_method : "auto";
}

static ingle_status check_method(const char *method, struct err *err)
{
    static const char *const methods[] = {INGLE_DRAFT_METHODS};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i], method) == 0)
            return INGLE_OK;
    return err_set(
        err, INGLE_ARG,
        "draft method '%.40s' is none of auto, dflash, mtp, dspark, model, ngram and none", method);
}

static ingle_status read_words(struct ingle_engine *e, const struct ingle_engine_options *o,
                               bool *off, struct err *err)
{
    const char *method = method_of(o);
    const ingle_status st = check_method(method, err);
    if (st)
        return st;
    if (o->draft_max < 0 || o->draft_min < 0 || o->draft_tree < 0 || o->draft_block < 0 ||
        o->draft_ctx < 0)
        return err_set(err, INGLE_ARG, "a number of drafting is below 0");
    *off = strcmp(method, "none") == 0;
    for (size_t i = 0; i < o->n_draft; i++)
        if (strcmp(o->draft[i], "off") == 0) {
            if (o->n_draft > 1)
                return err_set(err, INGLE_ARG,
                               "'--draft off' and '--draft %s' contradict each other",
                               o->draft[i ? 0 : 1]);
            *off = true;
        }
    e->draft_text = !*off && (strcmp(method, "auto") == 0 || strcmp(method, "ngram") == 0);
    if (o->draft_max && o->draft_min > o->draft_max)
        return err_set(err, INGLE_ARG,
                       "at least %lld tokens of a draft (--draft-min) are more than the %lld at "
                       "most (--draft-max)",
                       (long long)o->draft_min, (long long)o->draft_max);
    e->draft_most = o->draft_max;
    e->draft_least = o->draft_min;
    e->draft_tree = *off ? 0 : o->draft_tree;
    if (*off)
        snprintf(e->draft_why, sizeof e->draft_why, "drafting is switched off (%s)",
                 strcmp(method, "none") ? "--draft off" : "--draft-method none");
    return INGLE_OK;
}

ingle_status engine_draft_choose(struct ingle_engine *e, const struct ingle_engine_options *o,
                                 engine_suits_fn *suits, struct err *err)
{
    struct choice c = {.e = e, .o = o, .method = method_of(o)};
    bool off = false, named = false;
    ingle_status st = read_words(e, o, &off, err);
    if (st || off)
        return st;
    if (strcmp(c.method, "ngram") == 0) {
        snprintf(e->draft_why, sizeof e->draft_why,
                 "only the text itself drafts (--draft-method ngram)");
        return INGLE_OK;
    }
    st = gather(&c, &named, err);
    if (!st && c.n) {
        sort(&c);
        take(&c, named, suits);
    } else if (!st) {
        st = nothing(&c, named, err);
    }
    for (int i = 0; i < c.n; i++)
        engine_draft_free(c.at[i]);
    if (st || !e->draft)
        return st;
    e->draft->sink = e->sink;
    if (e->draft_most > e->draft->info.most)
        report(&e->sink, INGLE_REPORT_NOTE, "draft", e->draft->path,
               "it drafts up to %lld tokens, not %lld", (long long)e->draft->info.most,
               (long long)e->draft_most);
    return e->draft->file ? model_check_unused(e->draft->weights, err) : INGLE_OK;
}

/* ---- of a request ---- */

ingle_status engine_draft_method(const struct ingle_engine *e, const char *method, bool *network,
                                 bool *text, struct err *err)
{
    const char *kind = e->draft ? e->draft->kind->kind : NULL;
    *network = true; /* if there is one */
    *text = e->draft_text;
    if (!method || strcmp(method, "auto") == 0)
        return INGLE_OK;
    const ingle_status st = check_method(method, err);
    const bool by_text = strcmp(method, "ngram") == 0, none = strcmp(method, "none") == 0;
    if (st)
        return st;
    *network = !by_text && !none && e->draft && is_method(e->draft->kind, method);
    *text = by_text && e->draft_text;
    if (none || *network || *text)
        return INGLE_OK;
    if (!kind && !e->draft_text)
        return err_set(err, INGLE_ARG, "no drafter of the method '%s' is at hand: %.160s", method,
                       e->draft_why);
    return err_set(err, INGLE_ARG, "no drafter of the method '%s' is at hand; there is: %s%s%s",
                   method, kind ? kind : "", kind && e->draft_text ? ", " : "",
                   e->draft_text ? "ngram" : "");
}

bool engine_drafts_bytes(int64_t n_sessions, int64_t n_ctx, uint64_t *out)
{
    uint64_t texts;
    return num_mul_u64(session_ngram_bytes(n_ctx + 1), (uint64_t)n_sessions, &texts) &&
           num_add_u64(texts, ENGINE_MEMORY_USERS * session_ngram_bytes(ENGINE_MEMORY_TOKENS), out);
}

int64_t engine_branches_of(int64_t n_nodes)
{
    return n_nodes > 1 ? num_min(n_nodes - 1, ENGINE_BRANCHES) : 0;
}

/* ---- what a network is like ---- */

static uint64_t value_hash(const struct io_value *v, uint64_t h)
{
    h = XXH3_64bits_withSeed(v->key, strlen(v->key), h);
    if (v->kind == IO_STR)
        return XXH3_64bits_withSeed(v->v.s, v->n, h);
    for (size_t i = 0; i < v->n; i++) {
        const bool array = v->kind == IO_ARRAY;
        const enum io_value_kind kind = array ? v->elem : v->kind;
        uint64_t bits = 0;
        double f = 0;
        size_t n = 0;
        const char *s = NULL;
        if (kind == IO_F64)
            f = array ? io_array_f64(v, i) : v->v.f;
        else if (kind == IO_BOOL)
            bits = array ? io_array_bool(v, i) : v->v.b;
        else if (kind == IO_STR)
            s = io_array_str(v, i, &n);
        else if (kind == IO_I64)
            bits = (uint64_t)(array ? io_array_i64(v, i) : v->v.i);
        else
            bits = array ? io_array_u64(v, i) : v->v.u;
        if (s)
            h = XXH3_64bits_withSeed(s, n, h);
        h = XXH3_64bits_withSeed(&bits, sizeof bits, h);
        h = XXH3_64bits_withSeed(&f, sizeof f, h);
    }
    return h;
}

uint64_t engine_meta_hash(const struct io_meta *meta, const char *arch, uint64_t h)
{
    static const char words[] = "tokenizer.", general[] = "general.";
    const size_t n = strlen(arch);
    for (size_t i = 0; i < io_meta_count(meta); i++) {
        const struct io_value *v = io_meta_at(meta, i);
        if (n ? strncmp(v->key, arch, n) == 0 && v->key[n] == '.'
              : strncmp(v->key, words, sizeof words - 1) != 0 &&
                    strncmp(v->key, general, sizeof general - 1) != 0)
            h = value_hash(v, h);
    }
    return h;
}
