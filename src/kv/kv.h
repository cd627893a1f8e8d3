/*
 * kv - what sessions remember of the tokens they have seen.
 *
 * A page is 128 positions of one group of streams with the same lifetime.  A timeline is a
 * list of pages per group; nothing wraps: rewind is a shorter length, fork is shared pages,
 * restore is attached pages, eviction is whole pages.  References are counted; a shared
 * page is never written (extend copies the partly filled last page if it is shared).
 *
 * A window group needs only the last `window` positions.  Its pages before the window
 * (less KV_REWIND positions, so that a live session can always step back that far) go back
 * to the pool as the timeline grows, except those that a restore point holds.
 *
 * A restore point is where the prefix tree can restart: the pages as they stood at a
 * length, and a mark (the small state that pages do not hold).  Lookup takes the deepest
 * restore point not beyond the match.
 *
 * Everything here belongs to the engine thread.
 */
#ifndef INGLE_KV_KV_H
#define INGLE_KV_KV_H

#include "base/err.h"
#include "base/numa.h"
#include "base/report.h"
#include "kern/kern.h"
#include "kv/way.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Another number here: results have other bits than before, and older pages are no longer what
 * would be computed today. */
enum { KV_ARITHMETIC = 5 };
enum { KV_PAGE = KERN_PAGE, KV_REWIND = 64, KV_MAX_GROUPS = 8, KV_MARKS = 8 };

/* A hash that names tokens in a context. */
struct kv_key {
    uint64_t lo, hi;
};

/*
 * Positions of a picture or a sound are not tokens: each is a name of 256 bits, which says what was
 * encoded and how, and an index in it.  In lists of tokens for tree, store and files a number below
 * 0, a key, stands for both.  A table of the pool has the names; numbers are valid as long as
 * somebody has a reference, or something of the tree refers to them.  Any thread.
 */
enum { KV_MEDIUM_ID = 32, KV_MEDIUM_MOST = 2048 }; /* bytes of a name; positions of a medium */
struct kv_media;
/* What is called so: token stands in texts for its positions, kind is the caller's. */
struct kv_medium {
    uint8_t id[KV_MEDIUM_ID];
    int32_t token;
    uint16_t kind;
};
/* A whole medium at tokens [start, start + n). */
struct kv_media_span {
    int64_t start;
    uint16_t n, kind;
    int32_t token;
    uint8_t id[KV_MEDIUM_ID];
};
/* The number of a name, with a reference; -1: no memory, or no number is free. */
int32_t kv_media_take(struct kv_media *m, const struct kv_medium *of);
void kv_media_hold(struct kv_media *m, int32_t number);
void kv_media_give(struct kv_media *m, int32_t number);
/* No number is free; then the tree is to be cleared, and kv_media_sweep() forgets names that nobody
 * refers to. */
bool kv_media_is_full(struct kv_media *m);
void kv_media_sweep(struct kv_media *m);
int32_t kv_media_key(int32_t number, int64_t index);
/* Tokens [n] with a number of 0 or more, made of name and index, in the place of each key: the same
 * in every process. */
void kv_media_plain(struct kv_media *m, const int32_t *key, int64_t n, int32_t *out);

/* media: of keys among the tokens; NULL: there are none. */
struct kv_key kv_key_of(struct kv_key context, struct kv_scope scope, struct kv_media *media,
                        const int32_t *tokens, int64_t n);

/* One layer's keys and values (heads in blocks as kern/attend.h says), or plain rows. */
enum kv_kind {
    KV_HEADS, /* n_heads x (key block, value block) */
    KV_ROWS,  /* rows, one every `every` positions: [128 / every], kern/row.h */
    /* n_heads x (n4r block of keys, f32 mean of the page's values) of a KV_HEADS stream:
     * kern/select.h */
    KV_SHADOW,
};

struct kv_stream {
    enum kv_kind kind;
    uint32_t layer;
    uint32_t group;           /* index of its lifetime group */
    uint32_t n_heads;         /* KV_HEADS */
    int64_t k_width, v_width; /* KV_HEADS: per head; KV_ROWS: k_width elements a row, the
                               * last v_width of them its tail */
    enum kern_kv_codec k_codec, v_codec;
    uint32_t every; /* 1, or KV_ROWS: 4, 128 */
    uint32_t shadow; /* KV_HEADS: the stream of its shadow keys; 0: there is none */
    /* k_codec FROM_V, Q8R_ROT or N4R_ROT: how; borrowed while the spec is used */
    const struct kern_from_v *from_v;
    /* Filled by kv_layout(): bytes in a page. */
    size_t at;         /* where the stream begins */
    size_t head_bytes; /* from one head's key block to the next one's */
    size_t v_at;       /* from a head's key block to its value block */
    size_t n_bytes;    /* of all of it */
    bool own;          /* it is in the own part of its pages: kv_spec_set_own() */
    /* it is in the host's part, and who has the own parts keeps a copy of it */
    bool twin;
};

struct kv_spec {
    uint32_t n_groups;
    struct {
        int64_t window;
        size_t page_bytes;
        bool ends; /* a step writes no page that falls away when it is committed as a whole */
        size_t own_at, own_bytes; /* the part of a page that a device has for itself; 0: none */
    } group[KV_MAX_GROUPS]; /* window 0: everything is kept */
    uint32_t n_streams;
    struct kv_stream *stream; /* owned; ended with kv_spec_release() */
    /* Groups from n_own on are a guest's, whose streams follow the others; 0: there is none.  What
     * it keeps may be lacking in files and, before kv_timeline_from(), in timelines.  guest: who it
     * is, for files. */
    uint32_t n_own;
    uint64_t guest;
    /* Pages of kv_disk_group() that a timeline has in memory, at most; 0: all. */
    int64_t in_memory;
    /* Rows choose pages (kern/select.h): of each head of kv_disk_group() so many blocks that were
     * read stay in memory; 0: they do not. */
    int64_t kept;
};
void kv_spec_release(struct kv_spec *s);
/* Before kv_layout(): each stream of heads of a group that keeps everything gets one of shadow
 * keys, all in one more group; none where kern_select_refuses() them. */
MUST_CHECK ingle_status kv_spec_add_shadows(struct kv_spec *s, struct err *err);

/* Computes the offsets and page sizes.  INGLE_UNSUP names a layer whose codec cannot hold
 * its width. */
MUST_CHECK ingle_status kv_layout(struct kv_spec *s, struct err *err);

/* After kv_layout(): streams that are own make the own parts of pages. */
void kv_spec_set_own(struct kv_spec *s);
/* The same where other processes have the streams that are own (stage/stage.h): own parts have the
 * layout of whole pages. */
void kv_spec_set_away(struct kv_spec *s);
/* Where a stream begins in the part of a page that it is in. */
static inline size_t kv_stream_at(const struct kv_spec *s, const struct kv_stream *st)
{
    return st->own ? st->at - s->group[st->group].own_at : st->at;
}

/* Bytes of pages that one timeline of n_tokens needs at most while steps of up to n_step
 * rows extend it: with the pages of a restore point that it has just left behind (for a
 * group that keeps everything one page, for a window group those of the window).  More
 * restore points are cached only while there is room.  False: no such number. */
MUST_CHECK bool kv_plan_bytes(const struct kv_spec *s, int64_t n_tokens, int64_t n_step,
                              uint64_t *out);
/* The same, and how much of it is of window groups, which does not grow with n_tokens. */
MUST_CHECK bool kv_plan_parts(const struct kv_spec *s, int64_t n_tokens, int64_t n_step,
                              uint64_t *out, uint64_t *windows);

/* Bytes of pages of a restore point at n_tokens that shares none with others, except for those of
 * groups that keep everything: its windows, and its last page.  False: no such number. */
MUST_CHECK bool kv_point_bytes(const struct kv_spec *s, int64_t n_tokens, uint64_t *out);

/* ---- what keys and values are kept as ---- */

/* layers that see everything, and those with a window */
enum { KV_FULL, KV_SLIDING, KV_TYPE_KINDS };
enum { KV_TYPE_RANGES = 8 };
struct kv_types {
    enum kern_kv_codec k[KV_TYPE_KINDS], v[KV_TYPE_KINDS];
    bool shadow; /* of layers that see everything there are shadow keys, too */
    int n_ranges;
    /* instead of k and v of their kind; of two with the same layer the later one counts */
    struct kv_type_range {
        int64_t first, last; /* layers, the last one included */
        enum kern_kv_codec k, v;
    } range[KV_TYPE_RANGES];
};
/* The same for all. */
struct kv_types kv_types_of(enum kern_kv_codec c);
/* both: "TYPE", "K:V", "TYPEv" (keys are made of values) or "q8r+rot", "q8r:n4r+rot" (except what
 * positions turn); keys, values: of one side, instead; layers:
 * "full=BOTH,sliding=BOTH,7=BOTH,8-11=BOTH", instead of what else was said of such layers.  Any may
 * be NULL; F16 where nothing is said. Layers with windows have coded types only where `layers` says
 * so, else F16 instead. */
MUST_CHECK ingle_status kv_types_parse(const char *both, const char *keys, const char *values,
                                       const char *layers, struct kv_types *out, struct err *err);
/* The types of one layer; kind: KV_FULL or KV_SLIDING. */
void kv_types_of_layer(const struct kv_types *t, int64_t layer, int kind, enum kern_kv_codec *k,
                       enum kern_kv_codec *v);
/* Layers that are named must be below n_own, those with keys and values of their own; n_layers: of
 * the model. */
MUST_CHECK ingle_status kv_types_check_layers(const struct kv_types *t, int64_t n_own,
                                              int64_t n_layers, struct err *err);
struct kv_types_text {
    char at[256];
};
struct kv_types_text kv_types_name(const struct kv_types *t);
/* A drafter's: F16 where the model's are coded. */
struct kv_types kv_types_of_drafter(const struct kv_types *t);
/* Of a family that keeps rows (KV_ROWS), which have one type. */
MUST_CHECK ingle_status kv_types_of_rows(const struct kv_types *t, enum kern_kv_codec *out,
                                         struct err *err);

/* Bytes of pages of a fork that is extended by up to KV_PAGE positions and then ended.  False: no
 * such number. */
MUST_CHECK bool kv_branch_bytes(const struct kv_spec *s, uint64_t *out);

/* ---- the pool: pages with a budget ---- */

struct kv_pool;
struct kv_timeline;
struct kv_tree;

/* spec and sink are borrowed until kv_pool_free().  Pages are taken from the system when
 * first needed and reused; never more than budget_bytes are in use. */
MUST_CHECK ingle_status kv_pool_create(struct kv_pool **out, const struct kv_spec *spec,
                                       uint64_t budget_bytes, const struct report_sink *sink,
                                       struct err *err);
/* For memory that is taken from now on: it is spread over nodes (borrowed until kv_pool_free(), or
 * NULL), and stays in memory (mlock; the first refusal is reported and ends it).  by_split: large
 * pages that keep everything are on one node each, KERN_SPLIT positions after KERN_SPLIT positions
 * in turn, as attention and an indexer share them out; the first of these, and all others, have the
 * system's pages in turn. */
void kv_pool_memory(struct kv_pool *p, const struct numa_nodes *nodes, bool by_split, bool lock);
/*
 * Pages have two parts.  Streams that are own (kv_stream) are in memory that a device has for
 * itself, the others in the host's, at kv_stream_at().  The host's part is a
 * whole page all the same: files are written from there and read to there, so what is own is
 * fetched before a page is saved, and put where it belongs when a restored one gets its timeline.
 */
struct kv_memory {
    void *arg;
    /* for pages of a group; NULL: it has no more */
    void *(*take)(void *arg, uint32_t group, size_t n_bytes);
    void (*give)(void *arg, void *own, size_t n_bytes);
    void (*copy)(void *arg, void *to, const void *from, size_t n_bytes); /* own to own */
    /* of a stream; false: it is lost */
    bool (*read)(void *arg, uint32_t stream, void *host, const void *own, size_t n_bytes);
    void (*write)(void *arg, uint32_t stream, void *own, const void *host, size_t n_bytes);
};
/* Before the first page is taken, if a group has own parts; copied. */
void kv_pool_own(struct kv_pool *p, const struct kv_memory *m);
/* What is own is lost, of all pages.  Timelines of before are lost until they are cleared: nothing
 * of them is put into trees, stores and files.  for_good: no page has such a part any more (the
 * spec's streams are own no more); else those that are taken from now on have one. */
void kv_pool_lose_own(struct kv_pool *p, bool for_good);
bool kv_timeline_is_lost(const struct kv_timeline *t);
/* All timelines and the tree must have been freed. */
void kv_pool_free(struct kv_pool *p);

struct kv_pool_counts {
    uint64_t used_bytes;   /* of pages that somebody refers to: never more than the budget */
    uint64_t peak_bytes;   /* the most that used_bytes was */
    uint64_t cached_bytes; /* of used_bytes: what only the tree refers to and eviction can give */
    uint64_t budget_bytes;
    uint64_t system_bytes; /* memory taken from the system; free pages included */
    uint64_t token_bytes;  /* of a token in the groups that keep everything */
    int64_t pages_used[KV_MAX_GROUPS];
    int64_t evicted_points; /* they made room in the pool or in the tree's own budget */
};
void kv_pool_count(const struct kv_pool *p, struct kv_pool_counts *out);
struct kv_media *kv_pool_media(const struct kv_pool *p);

/* Pages that are not the pool's own memory: at() says where page `index` of a group is (NULL:
 * nowhere), and n counts those that somebody has. */
struct kv_lender {
    uint8_t *(*at)(void *arg, uint32_t group, int64_t index);
    void *arg;
    size_t n;
};
/* Pages that are filled from files, or go to kv_timeline_lend(), are this one's from now on;
 * borrowed.  NULL: the pool's. */
void kv_pool_lend(struct kv_pool *p, struct kv_lender *l);

/* ---- positions of a text of which some is left out ---- */

/* Where its tokens stand: index i of a timeline is the i-th token that is kept, its position the
 * place that it has in the whole text (rotations and windows are by position, pages and lengths by
 * index).  NULL: nothing is left out.  Immutable and counted. */
/* position [n], ascending, from 0 on; tokens after them go on from the last one.  *out NULL: there
 * are no gaps. */
MUST_CHECK ingle_status kv_gaps_create(struct kv_gaps **out, const int32_t *position, int64_t n,
                                       struct err *err);
struct kv_gaps *kv_gaps_ref(struct kv_gaps *g);
/* For files: as bytes [kv_gaps_bytes()], 0 of NULL, and back.  INGLE_FORMAT: they are no gaps. */
size_t kv_gaps_bytes(const struct kv_gaps *g);
void kv_gaps_write(const struct kv_gaps *g, void *to);
MUST_CHECK ingle_status kv_gaps_read(struct kv_gaps **out, const void *from, size_t n_bytes,
                                     struct err *err);
void kv_gaps_unref(struct kv_gaps *g);
int64_t kv_gaps_position(const struct kv_gaps *g, int64_t index);
/* The first index that stands at this position or after it. */
int64_t kv_gaps_index(const struct kv_gaps *g, int64_t position);
int64_t kv_gaps_skipped(const struct kv_gaps *g); /* positions that are left out, in all */
/* So many tokens stand at the same positions in both. */
int64_t kv_gaps_same(const struct kv_gaps *a, const struct kv_gaps *b);
/* NULL: timelines of such a model can have gaps; else why they cannot. */
const char *kv_gaps_refuse(const struct kv_spec *s);
/* What keeps prefixes that reach after the first gap from those of other positions. */
struct kv_shorten kv_gaps_shorten(const struct kv_gaps *g);

/* ---- timelines ---- */

struct kv_timeline;

MUST_CHECK ingle_status kv_timeline_create(struct kv_timeline **out, struct kv_pool *p,
                                           int64_t max_tokens, struct err *err);
void kv_timeline_free(struct kv_timeline *t);
int64_t kv_timeline_length(const struct kv_timeline *t);
/* What a guest keeps of positions [from, length) is there; from > 0 after a restore from a file
 * without it. */
int64_t kv_timeline_from(const struct kv_timeline *t);

/* From now on, what is there included: whoever calls this keeps what was computed for other
 * positions away.  A fork has those of its source.  It is a reference of its own. */
void kv_timeline_set_gaps(struct kv_timeline *t, struct kv_gaps *g);
struct kv_gaps *kv_timeline_gaps(const struct kv_timeline *t);

/* Makes positions [length, length + n) writable, until t is forked, put into the tree,
 * rewound or attached: pages exist and are this timeline's own.  A group whose steps write
 * their ends alone gets pages for those: then all n must be committed.
 * Evicts restore points by value when the pool is full; INGLE_LIMIT if that is not enough
 * (nothing has changed then).  Length stays. */
MUST_CHECK ingle_status kv_timeline_extend(struct kv_timeline *t, int64_t n, struct err *err);
/* n more positions have been written; window pages fall away. */
void kv_timeline_commit(struct kv_timeline *t, int64_t n);

/* The next extends also give the pages that a view at these positions needs (ascending, up to
 * KV_MARKS of them count), where a group's steps write their ends alone.  n = 0: none. */
void kv_timeline_mark(struct kv_timeline *t, const int64_t *at, int n);
/* dst becomes src's first `length` tokens, which may be some that were written and are not
 * committed yet; pages are shared, and may hold rows after the length.  False: pages of a window
 * are not there (dst is empty then). */
MUST_CHECK bool kv_timeline_view(struct kv_timeline *dst, struct kv_timeline *src, int64_t length);

/* page[i] is the memory of positions [128 i, 128 (i + 1)) of a group, NULL where it has
 * fallen away, was never there or is on disk alone (disk.h).  Valid until the next call on t. */
uint8_t *const *kv_timeline_pages(struct kv_timeline *t, uint32_t group);
/* The part of them that the stream is in. */
uint8_t *const *kv_timeline_stream(struct kv_timeline *t, const struct kv_stream *s);

/* Page i of a group is this memory, which is not the pool's; NULL: none.  For timelines that hold
 * no other pages; kv_timeline_clear() forgets all.  False: there is no such page. */
bool kv_timeline_lay(struct kv_timeline *t, uint32_t group, int64_t i, uint8_t *at);

/* An empty timeline becomes [0, length) of the lender's pages, which have been written.
 * INGLE_LIMIT: it lacks one. */
MUST_CHECK ingle_status kv_timeline_lend(struct kv_timeline *t, int64_t length, struct err *err);
/* ... or as if [0, length) were there, whose pages nobody asks for. */
void kv_timeline_assume(struct kv_timeline *t, int64_t length);

/* Shortens to length.  INGLE_NOTFOUND: a window page that would be needed was dropped (use a
 * restore point); t is unchanged then. */
/* A window group's pages at `length` serve a rewind to `to`. */
bool kv_spec_reaches(const struct kv_spec *s, int64_t length, int64_t to);
MUST_CHECK ingle_status kv_timeline_rewind(struct kv_timeline *t, int64_t length, struct err *err);
bool kv_timeline_can_rewind(const struct kv_timeline *t, int64_t length);

/* dst becomes what src is; pages are shared. */
MUST_CHECK ingle_status kv_timeline_fork(struct kv_timeline *dst, const struct kv_timeline *src,
                                         struct err *err);
void kv_timeline_clear(struct kv_timeline *t);

/* Who is notified of prefixes that can be continued, in memory or on disk; on whatever thread
 * that happens, without waiting. */
struct kv_watch {
    /* Its name for drop(); 0: it has none.  media [n]: 0 where a token stands, else a hash of the
     * name and the index of what does; tokens are placeholders there.  NULL: there are only
     * tokens. */
    uint64_t (*put)(void *arg, bool disk, struct kv_scope scope, const int32_t *tokens,
                    const uint32_t *media, int64_t n);
    void (*drop)(void *arg, bool disk, uint64_t name);
    void *arg;
};

/* ---- the prefix tree ---- */

struct kv_point; /* a restore point in the tree; borrowed, valid until the next tree or pool call */

/* One tree a pool.  The budget counts the pages that points hold (whoever else has them,
 * too), marks and the tree itself. */
MUST_CHECK ingle_status kv_tree_create(struct kv_tree **out, struct kv_pool *p,
                                       uint64_t budget_bytes, struct err *err);
void kv_tree_free(struct kv_tree *t);
/* Publishes points that are put from now on; borrowed.  NULL: none any more. */
void kv_tree_watch(struct kv_tree *t, const struct kv_watch *watch);

/* Remembers the timeline as it stands (its length must be n_tokens, tokens are what it
 * saw); mark is copied.  An equal point is refreshed, not stored twice: it keeps its pages
 * and its mark.  Not storing for lack of room in the budget is a report, not an error. */
MUST_CHECK ingle_status kv_tree_put(struct kv_tree *t, struct kv_scope scope,
                                    const struct kv_timeline *from, const int32_t *tokens,
                                    int64_t n_tokens, const void *mark, size_t mark_bytes,
                                    struct err *err);

/* The prefix is in use, so its restore point is as if it had been put now.  shared: other
 * conversations are likely to begin with it, so that it is worth more than the tokens after it.
 * False: there is none. */
bool kv_tree_use(struct kv_tree *t, struct kv_scope scope, const int32_t *tokens, int64_t n_tokens,
                 bool shared);

struct kv_match {
    const struct kv_point *point; /* the deepest restore point within limit, or NULL */
    int64_t length;               /* its tokens */
    int64_t matched;              /* tokens that any stored path shares with the question */
    const void *mark;
    size_t mark_bytes;
};
/* limit: the restore point must not be longer than this. */
void kv_tree_find(struct kv_tree *t, struct kv_scope scope, const int32_t *tokens, int64_t n_tokens,
                  int64_t limit, struct kv_match *out);

/* The longest prefix of more than `above` of these tokens that was a restore point recently and
 * had to make room; 0: none. */
int64_t kv_tree_given_up(const struct kv_tree *t, struct kv_scope scope, const int32_t *tokens,
                         int64_t n_tokens, int64_t above);

/* The store had no room for the point of these tokens; kv_tree_owed() finds it again. */
void kv_tree_owe(struct kv_tree *t, struct kv_scope scope, const int32_t *tokens, int64_t n_tokens);
/* The store may have given up any of them. */
void kv_tree_owe_all(struct kv_tree *t);
/* The shortest such point that is still there, which is owed no more, or NULL.  *tokens [*n_tokens]
 * is ended with mem_free(). */
const struct kv_point *kv_tree_owed(struct kv_tree *t, struct kv_scope *scope, int32_t **tokens,
                                    int64_t *n_tokens);

/* The timeline becomes the restore point's. */
MUST_CHECK ingle_status kv_timeline_attach(struct kv_timeline *t, struct kv_tree *tree,
                                           const struct kv_point *point, struct err *err);

void kv_tree_clear(struct kv_tree *t);

struct kv_tree_counts {
    int64_t points;
    /* that the store has not; that were given up before it had room for them, since the tree's
     * begin */
    int64_t owed, lost;
    uint64_t bytes, budget_bytes;
};
void kv_tree_count(const struct kv_tree *t, struct kv_tree_counts *out);

#include "kv/disk.h"
#include "kv/save.h"
#include "kv/store.h"

#endif
