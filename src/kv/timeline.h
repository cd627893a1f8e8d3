/* timeline - the page tables, for this room only: the prefix tree reads and fills them. */
#ifndef INGLE_KV_TIMELINE_H
#define INGLE_KV_TIMELINE_H

#include "kv/page.h"

/* Pages [first, end) are there.  Those beyond the length are this timeline's own; the page
 * that the length stands in is, from an extend to the next fork, put, rewind or attach. */
struct kv_table {
    struct kv_page **page; /* [cap] */
    uint8_t **at;          /* [cap]: page[i]->at, or NULL; ... */
    uint8_t **own;         /* [cap]: page[i]->own, of a group with own parts; else NULL */
    /* [cap], of the group that a disk has: what kv_heads_take() said; else NULL */
    uint8_t **head;
    uint64_t moves;        /* ... as the pool's pages were then */
    int64_t first, end;
};

struct kv_timeline {
    struct kv_pool *pool; /* borrowed */
    int64_t max_tokens;
    int64_t cap; /* pages */
    int64_t length;
    int64_t ready; /* writable up to here, >= length */
    int64_t from;  /* a guest's rows are there from here on, <= length */
    int64_t mark[KV_MARKS];
    int n_marks;
    struct kv_gaps *gaps; /* owned, or NULL */
    uint32_t loss; /* nothing is of before so many losses of own parts */
    bool viewed; /* since the last extend: what is written may be in views */
    struct kv_table table[KV_MAX_GROUPS];
};

/* Pages that somebody may have asked for all along: the first one, the newest ones and the one that
 * is written.  They stay in memory. */
enum { KV_STAYS = 4 };

/* The first page that group g must have at this length. */
int64_t kv_timeline_first(const struct kv_spec *s, uint32_t g, int64_t length);

/* Puts a page into an empty place: a new reference.  The caller sets first and end. */
void kv_timeline_share(struct kv_timeline *t, uint32_t g, int64_t i, struct kv_page *pg);

/* The timeline becomes [0, length): groups that keep everything keep their first `have`
 * pages (which must be there), all others are these, group by group, ascending; their
 * references become the timeline's.  lacks: nothing has been written to those of a guest. */
void kv_timeline_adopt(struct kv_timeline *t, int64_t length, int64_t have,
                       struct kv_page *const *page, bool lacks);

#endif
