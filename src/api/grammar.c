/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar - ingle_grammar_*: compiled grammars, and the trie of a model's vocabulary that
 * they share.
 *
 * Many requests bring the same grammar.  The last ones are kept compiled, with some
 * matchers of answers that have ended: these know the states of the grammar and their
 * masks, which are most of the work.
 */
#include "api/api.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/str.h"
#include "api/words.h"

#include <pthread.h>
#include <string.h>

enum {
    MOST_KEPT = 16,
    MOST_KEPT_BYTES = 256 * 1024,
    MOST_IDLE = 8,
    MOST_IDLE_OF_ONE = 4,
    MOST_WARNINGS = 32
};

/* Of matchers that wait for their grammar to be used again; and what is given back to the system at
 * once. */
enum { MOST_IDLE_BYTES = 64 << 20, LARGE_BYTES = 8 << 20 };

/* What was said while a grammar was compiled. */
struct warnings {
    const struct report_sink *sink; /* which hears it as well, while it is compiled */
    char *text[MOST_WARNINGS];
    size_t n;
};

struct compiled {
    struct compiled *next;
    int refs; /* Sync: words->lock; handles, rules, and the list's own */
    bool listed;
    enum ingle_grammar_kind kind;
    bool drop;
    char *text;
    size_t n;
    struct warnings warnings;
    struct grammar *g;
    struct grammar_matcher *idle[MOST_IDLE_OF_ONE]; /* Sync: words->lock */
    int n_idle;
};

struct engine_words {
    pthread_mutex_t lock;
    struct grammar_vocab *vocab; /* Sync: lock.  NULL until the first grammar is used */
    struct compiled *first;           /* Sync: lock.  The last ones used come first */
    int n_idle;                       /* Sync: lock.  Of all that are listed */
    /* Sync: lock.  Of idle matchers, listed or not; of those that were freed, in all */
    size_t idle_bytes, freed_bytes;
};

struct ingle_grammar {
    const struct ingle_model *m;
    struct compiled *c; /* a reference */
};

/* ---- compiled grammars; all with words->lock held ---- */

static void free_matcher(struct engine_words *w, struct grammar_matcher *m, bool idle)
{
    const size_t n = m ? grammar_matcher_bytes(m) : 0;
    w->freed_bytes += n;
    w->idle_bytes -= idle ? n : 0;
    grammar_matcher_free(m);
}

static void free_compiled(struct engine_words *w, struct compiled *c)
{
    for (int i = 0; i < c->n_idle; i++)
        free_matcher(w, c->idle[i], true);
    for (size_t i = 0; i < c->warnings.n; i++)
        mem_free(c->warnings.text[i]);
    grammar_free(c->g);
    mem_free(c->text);
    mem_free(c);
}

static void unref(struct engine_words *w, struct compiled *c)
{
    if (--c->refs == 0)
        free_compiled(w, c);
}

static void unlist(struct engine_words *w, struct compiled **at)
{
    struct compiled *c = *at;
    *at = c->next;
    c->listed = false;
    w->n_idle -= c->n_idle;
    unref(w, c);
}

static void list_first(struct engine_words *w, struct compiled *c)
{
    struct compiled **at;
    int n = 1;
    c->next = w->first;
    w->first = c;
    for (at = &c->next; *at && n < MOST_KEPT; at = &(*at)->next)
        n++;
    while (*at)
        unlist(w, at);
}

/* With a reference, or NULL. */
static struct compiled *find(struct engine_words *w, enum ingle_grammar_kind kind, bool drop,
                             const char *text, size_t n)
{
    struct compiled **at = &w->first;
    while (*at && !((*at)->kind == kind && (*at)->drop == drop && (*at)->n == n &&
                    (!n || memcmp((*at)->text, text, n) == 0)))
        at = &(*at)->next;
    struct compiled *c = *at;
    if (!c)
        return NULL;
    *at = c->next;
    list_first(w, c);
    c->refs++;
    return c;
}

/* Makes room for one more of c, of n bytes; false: there is none. */
static bool room_for_idle(struct engine_words *w, const struct compiled *c, size_t n)
{
    if (!c->listed || c->n_idle >= MOST_IDLE_OF_ONE || n > MOST_IDLE_BYTES / 2)
        return false;
    while (w->n_idle >= MOST_IDLE || w->idle_bytes > MOST_IDLE_BYTES - n) {
        struct compiled *oldest = NULL;
        for (struct compiled *i = w->first; i; i = i->next)
            oldest = i->n_idle && i != c ? i : oldest;
        if (!oldest)
            return false;
        free_matcher(w, oldest->idle[--oldest->n_idle], true);
        w->n_idle--;
    }
    return true;
}

static struct grammar_matcher *take_idle(struct engine_words *w, struct compiled *c)
{
    if (!c->n_idle)
        return NULL;
    w->n_idle -= c->listed;
    w->idle_bytes -= grammar_matcher_bytes(c->idle[c->n_idle - 1]);
    return c->idle[--c->n_idle];
}

/* Takes m. */
static void put_idle(struct engine_words *w, struct compiled *c, struct grammar_matcher *m)
{
    const size_t n = grammar_matcher_bytes(m);
    if (!room_for_idle(w, c, n)) {
        free_matcher(w, m, false);
        return;
    }
    w->idle_bytes += n;
    c->idle[c->n_idle++] = m;
    w->n_idle++;
}

/* ---- a model's words ---- */

ingle_status engine_words_open(struct engine_words **out, struct err *err)
{
    struct engine_words *w = mem_zalloc(sizeof *w);
    if (!w || pthread_mutex_init(&w->lock, NULL)) {
        mem_free(w);
        return err_set(err, INGLE_NOMEM, "no memory for a vocabulary");
    }
    *out = w;
    return INGLE_OK;
}

void engine_words_close(struct engine_words *w)
{
    if (!w)
        return;
    while (w->first)
        unlist(w, &w->first);
    pthread_mutex_destroy(&w->lock);
    grammar_vocab_free(w->vocab);
    mem_free(w);
}

size_t engine_words_bytes(struct engine_words *w)
{
    (void)pthread_mutex_lock(&w->lock);
    const size_t n = w->idle_bytes;
    (void)pthread_mutex_unlock(&w->lock);
    return n;
}

/* Logits may have more entries than the tokenizer has tokens, or fewer; those beyond it never
 * fit a grammar. */
static ingle_status vocab_of(const struct ingle_model *m, const struct grammar_vocab **out,
                             struct err *err)
{
    ingle_status st = INGLE_OK;
    if (pthread_mutex_lock(&m->words->lock))
        return err_set(err, INGLE_NOMEM, "the vocabulary cannot be locked");
    if (!m->words->vocab)
        st = grammar_vocab_create(&m->words->vocab, m->tokenizer, (int64_t)engine_n_tokens(m),
                                       m->end, m->n_end, err);
    *out = m->words->vocab;
    (void)pthread_mutex_unlock(&m->words->lock);
    return st;
}

static void take_warning(void *arg, ingle_report_level level, const char *kind, const char *subject,
                         const char *text)
{
    struct warnings *w = arg;
    struct str s;
    report(w->sink, level, kind, subject, "%s", text);
    if (level > INGLE_REPORT_WARN || w->n == MOST_WARNINGS)
        return;
    str_init(&s);
    str_addf(&s, "%s at '%s': %s", kind, subject, text);
    w->text[w->n] = str_ok(&s) ? mem_strdup(s.at) : NULL;
    w->n += w->text[w->n] != NULL;
    str_release(&s);
}

static ingle_status compile(struct grammar **out, struct warnings *warnings,
                            const struct ingle_model *m, enum ingle_grammar_kind kind,
                            const char *text, size_t n, struct grammar_work *work, struct err *err)
{
    const struct report_sink take = {.report = take_warning, .arg = warnings}, *sink = &take;
    switch (kind) {
    case INGLE_GRAMMAR_GBNF:
        return grammar_gbnf(out, m->tokenizer, text, n, work, err);
    case INGLE_GRAMMAR_JSON:
        return grammar_json(out, err);
    case INGLE_GRAMMAR_JSON_SCHEMA:
        return grammar_schema(out, text, n, sink, work, err);
    case INGLE_GRAMMAR_REGEX:
        return grammar_regex(out, text, n, work, err);
    case INGLE_GRAMMAR_TOOLS:
        return grammar_tools(out, m->chat, m->tokenizer, text, n, sink, work, err);
    }
    return err_set(err, INGLE_ARG, "grammar kind %d is unknown", (int)kind);
}

/* A new one with a reference, which is kept if it is not too large. */
static ingle_status make(struct compiled **out, const struct ingle_model *m,
                         enum ingle_grammar_kind kind, const char *text, size_t n,
                         const struct ingle_grammar_options *o, struct err *err)
{
    struct grammar_work work = {.stop = o->stop, .arg = o->arg, .drop = o->drop};
    struct compiled *c = mem_zalloc(sizeof *c);
    if (!c)
        return err_set(err, INGLE_NOMEM, "no memory for a grammar");
    c->warnings.sink = &m->sink;
    const ingle_status st = compile(&c->g, &c->warnings, m, kind, text, n, &work, err);
    if (st) {
        free_compiled(m->words, c);
        return st;
    }
    c->refs = 1;
    c->kind = kind;
    c->drop = o->drop;
    c->n = n;
    *out = c;
    if (n > MOST_KEPT_BYTES || !(c->text = mem_strndup(n ? text : "", n)) ||
        pthread_mutex_lock(&m->words->lock))
        return INGLE_OK;
    c->refs++;
    c->listed = true;
    list_first(m->words, c);
    (void)pthread_mutex_unlock(&m->words->lock);
    return INGLE_OK;
}

static ingle_status open_grammar(struct ingle_grammar *g, const struct ingle_model *m,
                                 enum ingle_grammar_kind kind, const char *text, size_t n,
                                 const struct ingle_grammar_options *o, struct err *err)
{
    const struct grammar_vocab *vocab;
    ingle_status st = engine_need_words(m, err);
    if (!st && !text && kind != INGLE_GRAMMAR_JSON)
        st = err_set(err, INGLE_ARG, "a grammar has no text");
    if (!st)
        st = vocab_of(m, &vocab, err);
    if (st)
        return st;
    g->m = m;
    n = text ? n : 0;
    if (pthread_mutex_lock(&m->words->lock) == 0) {
        g->c = find(m->words, kind, o->drop, text, n);
        (void)pthread_mutex_unlock(&m->words->lock);
    }
    return g->c ? INGLE_OK : make(&g->c, m, kind, text, n, o, err);
}

ingle_status ingle_grammar_open(struct ingle_grammar **out, const struct ingle_model *m,
                                enum ingle_grammar_kind kind, const char *text, size_t n,
                                struct ingle_error *error)
{
    return ingle_grammar_open_with(out, m, kind, text, n, NULL, error);
}

const char *const *ingle_grammar_warnings(const struct ingle_grammar *g, size_t *n)
{
    *n = g->c->warnings.n;
    return (const char *const *)g->c->warnings.text;
}

ingle_status ingle_grammar_open_with(struct ingle_grammar **out, const struct ingle_model *m,
                                     enum ingle_grammar_kind kind, const char *text, size_t n,
                                     const struct ingle_grammar_options *o,
                                     struct ingle_error *error)
{
    static const struct ingle_grammar_options none;
    struct err err;
    struct ingle_grammar *g = mem_zalloc(sizeof *g);
    if (!g)
        return engine_say(error, err_set(&err, INGLE_NOMEM, "no memory for a grammar"), &err);
    const ingle_status st = open_grammar(g, m, kind, text, n, o ? o : &none, &err);
    if (st)
        mem_free(g);
    else
        *out = g;
    return engine_say(error, st, &err);
}

void ingle_grammar_close(struct ingle_grammar *g)
{
    if (!g)
        return;
    (void)pthread_mutex_lock(&g->m->words->lock);
    unref(g->m->words, g->c);
    (void)pthread_mutex_unlock(&g->m->words->lock);
    mem_free(g);
}

/* ---- drawing ---- */

struct engine_rule {
    struct engine_words *words;
    const struct tokenizer *tokenizer;
    const struct grammar_vocab *vocab;
    struct compiled *c; /* a reference */
    struct grammar_matcher *matcher;
    bool failed; /* the matcher's tables may be half made */
    bool ready;  /* allowed is that of the present place */
    uint64_t *allowed; /* [(n_vocab + 63) / 64] */
    size_t n_words, n_matcher_words;
    int64_t n_vocab; /* logits */
};

ingle_status engine_rule_open(struct engine_rule **out, const struct ingle_grammar *g,
                              const struct ingle_model *m, int64_t n_vocab, struct err *err)
{
    const struct grammar_vocab *vocab = NULL;
    if (g->m != m)
        return err_set(err, INGLE_ARG, "the grammar was made for another model");
    ingle_status st = vocab_of(m, &vocab, err);
    if (st)
        return st;
    struct engine_rule *r = mem_zalloc(sizeof *r);
    if (!r)
        return err_set(err, INGLE_NOMEM, "no memory for a grammar");
    r->words = m->words;
    r->tokenizer = m->tokenizer;
    r->vocab = vocab;
    (void)pthread_mutex_lock(&m->words->lock);
    r->c = g->c;
    r->c->refs++;
    r->matcher = take_idle(m->words, r->c);
    (void)pthread_mutex_unlock(&m->words->lock);
    r->n_vocab = n_vocab;
    r->n_words = ((size_t)n_vocab + 63) / 64;
    r->n_matcher_words = (engine_n_tokens(m) + 63) / 64;
    r->allowed = mem_calloc(r->n_words + 1, sizeof *r->allowed);
    if (!r->allowed)
        st = err_set(err, INGLE_NOMEM, "no memory for a grammar's mask");
    else if (r->matcher)
        st = grammar_matcher_reset(r->matcher, err);
    else
        st = grammar_matcher_create(&r->matcher, g->c->g, vocab, err);
    r->failed = st != INGLE_OK;
    if (st)
        engine_rule_close(r);
    else
        *out = r;
    return st;
}

void engine_rule_close(struct engine_rule *r)
{
    if (!r)
        return;
    struct engine_words *w = r->words;
    (void)pthread_mutex_lock(&w->lock);
    const size_t before = w->freed_bytes;
    if (r->failed || !r->matcher)
        free_matcher(w, r->matcher, false);
    else
        put_idle(w, r->c, r->matcher);
    unref(w, r->c);
    const size_t freed = w->freed_bytes - before;
    (void)pthread_mutex_unlock(&w->lock);
    if (freed >= LARGE_BYTES) /* else the allocator keeps it */
        mem_trim();
    mem_free(r->allowed);
    mem_free(r);
}

ingle_status engine_rule_mask(struct engine_rule *r, const struct grammar_pause *pause,
                              const uint64_t **allowed, struct err *err)
{
    const uint64_t *bit;
    ingle_status st = INGLE_OK;
    if (!r->ready) {
        grammar_matcher_bound(r->matcher, pause);
        st = grammar_matcher_mask(r->matcher, &bit, err);
        grammar_matcher_bound(r->matcher, NULL);
        r->failed = r->failed || (st && st != INGLE_CANCEL);
    }
    if (st)
        return st;
    for (size_t i = 0; i < r->n_words && !r->ready; i++)
        r->allowed[i] = i < r->n_matcher_words ? bit[i] : 0;
    r->ready = true;
    *allowed = r->allowed;
    return INGLE_OK;
}

ingle_status engine_rule_allows(struct engine_rule *r, const struct grammar_pause *pause,
                                int32_t token, bool *allows, struct err *err)
{
    if (r->ready && token >= 0 && (size_t)token / 64 < r->n_words) {
        *allows = r->allowed[token / 64] >> (token % 64) & 1;
        return INGLE_OK;
    }
    grammar_matcher_bound(r->matcher, pause);
    const ingle_status st = grammar_matcher_allows(r->matcher, token, allows, err);
    grammar_matcher_bound(r->matcher, NULL);
    r->failed = r->failed || (st && st != INGLE_CANCEL);
    return st;
}

ingle_status engine_rule_fits(struct engine_rule *r, const struct grammar_pause *pause,
                              const int32_t *token, int64_t n, int64_t *fit, struct err *err)
{
    grammar_matcher_bound(r->matcher, pause);
    const ingle_status st = grammar_matcher_fits(r->matcher, token, n, fit, err);
    grammar_matcher_bound(r->matcher, NULL);
    r->failed = r->failed || (st && st != INGLE_CANCEL && st != INGLE_LIMIT);
    return st;
}

/* ---- what it forces ---- */

enum { FORCED_BYTES = 256, FORCED_PIECES = 8 };
/* A token of a text that can be cut otherwise; the last one of a run, which what follows may be
 * part of. */
static const float LIKELY = 0.85f, OPEN = 0.5f;

/* Tokens that were found so far. */
struct forced { int64_t n, width, n_vocab; int32_t *token; float *confidence; };

static void add_forced(struct forced *f, int32_t token, float confidence)
{
    if (token >= f->n_vocab) /* it has no logit, nor do those after it come */
        f->width = f->n;
    if (f->n == f->width)
        return;
    f->token[f->n] = token;
    f->confidence[f->n++] = confidence;
}

/* The tokens of n bytes. */
static void add_bytes(struct forced *f, const struct engine_rule *r, const char *bytes, size_t n,
                      bool open, struct text_ids *scratch)
{
    struct err err;
    size_t at = 0;
    scratch->n = 0;
    if (text_encode(r->tokenizer, bytes, n, false, NULL, 0, scratch, &err))
        return;
    for (size_t i = 0; i < scratch->n && at < n; i++) {
        const bool last = i + 1 == scratch->n;
        const bool single = grammar_vocab_single(r->vocab, bytes + at, n - at, open);
        add_forced(f, scratch->id[i], single ? 1 : last && open ? OPEN : LIKELY);
        at += grammar_vocab_bytes(r->vocab, scratch->id[i]);
    }
}

int64_t engine_rule_forced(struct engine_rule *r, const struct grammar_pause *pause, int64_t width,
                           int32_t *token, float *confidence, struct text_ids *scratch)
{
    struct err err;
    char bytes[FORCED_BYTES];
    struct grammar_forced piece[FORCED_PIECES];
    struct forced f = {
        .width = width, .n_vocab = r->n_vocab, .token = token, .confidence = confidence};
    size_t n = FORCED_PIECES, at = 0;
    bool open = false;
    grammar_matcher_bound(r->matcher, pause);
    const ingle_status st =
        grammar_matcher_forced(r->matcher, piece, &n, bytes, sizeof bytes, &open, &err);
    grammar_matcher_bound(r->matcher, NULL);
    r->failed = r->failed || (st && st != INGLE_CANCEL && st != INGLE_LIMIT);
    for (size_t i = 0; i < n && !st; i++) {
        if (piece[i].token >= 0)
            add_forced(&f, piece[i].token, 1);
        else
            add_bytes(&f, r, bytes + at, piece[i].n_bytes, open && i + 1 == n, scratch);
        at += piece[i].n_bytes;
    }
    return f.n;
}

ingle_status engine_rule_accept(struct engine_rule *r, int32_t token, struct err *err)
{
    r->ready = false;
    const ingle_status st = grammar_matcher_accept(r->matcher, token, err);
    r->failed = r->failed || st;
    return st;
}

ingle_status engine_rule_accept_text(struct engine_rule *r, const char *text, size_t n,
                                     struct err *err)
{
    size_t n_taken = 0;
    r->ready = false;
    const ingle_status st = grammar_matcher_accept_bytes(r->matcher, text, n, &n_taken, err);
    r->failed = r->failed || st;
    if (st || n_taken == n)
        return st;
    return err_set(err, INGLE_ARG, "byte %zu of a text of %zu does not fit the grammar", n_taken,
                   n);
}
