/* wire - messages as bytes, and what both ends know of pages; for this room only. */
#ifndef INGLE_STAGE_WIRE_H
#define INGLE_STAGE_WIRE_H

#include "stage/stage.h"

/* Reads or writes one after the other; what does not fit sets `bad`, and later calls do nothing. */
struct wire { uint8_t *at; size_t n, cap; bool bad; };
void stage_put(struct wire *w, const void *from, size_t n);
void stage_put_u32(struct wire *w, uint64_t v);
void stage_put_u64(struct wire *w, uint64_t v);
struct wire_in { const uint8_t *at; size_t n, cap; bool bad; };
const uint8_t *stage_get(struct wire_in *w, size_t n);
uint32_t stage_get_u32(struct wire_in *w);
uint64_t stage_get_u64(struct wire_in *w);

/* Whether any f32 of n bytes, at any address, is no number or infinite. */
bool stage_has_bad(const uint8_t *at, size_t n);

void stage_hello_write(const struct stage_hello *h, uint8_t out[LINK_JOIN_BYTES]);
MUST_CHECK ingle_status stage_hello_read(const uint8_t *at, size_t n, struct stage_hello *out,
                                         struct err *err);
/* engine: what it is; there: what the stage is.  "here" and "there" are as the engine sees them. */
MUST_CHECK ingle_status stage_hello_agree(const struct stage_hello *engine,
                                          const struct stage_hello *there, struct err *err);

/* number: of the JOIN that is answered; 0: of none that joins. */
void stage_hello_send(struct link *l, const struct link_peer *to, const struct stage_hello *h,
                      uint64_t number);

/* A TRY: u64, the bytes of the answer, and any others.  Of a peer whose last answer is not sent
 * it is not answered. */
enum { STAGE_TRY_BYTES = 8 << 20 };
MUST_CHECK ingle_status stage_answer_try(struct link *l, const struct link_in *in,
                                         const struct link_head *h, struct err *err);

/* ---- pages ---- */

/* What a PAGES message says. */
enum stage_op { STAGE_TAKE = 1, STAGE_GIVE, STAGE_COPY, STAGE_WRITE };
/* of each: u32 which, u64 [3]; WRITE is followed by its bytes; so many in a message, and so many
 * bytes, or one that has more */
enum { STAGE_OP = 28, STAGE_MOST_OPS = 1 << 16, STAGE_OPS_BYTES = 1 << 20 };

/* Pages that were taken together: addresses are the engine's. */
struct stage_slab {
    uint64_t at, n_bytes, page_bytes;
    uint8_t *memory; /* of a stage: n_bytes; of an engine NULL */
    uint64_t *hash;  /* [n_bytes / page_bytes][KV_PAGE] */
};
struct stage_pages { struct stage_slab *slab; size_t n, cap; uint64_t n_bytes; }; /* by address */

MUST_CHECK ingle_status stage_pages_take(struct stage_pages *p, uint64_t at, uint64_t n_bytes,
                                         uint64_t page_bytes, bool memory, struct err *err);
bool stage_pages_give(struct stage_pages *p, uint64_t at);
void stage_pages_clear(struct stage_pages *p);
/* The slab that n bytes from `at` on lie in; NULL: none has them. */
struct stage_slab *stage_pages_find(const struct stage_pages *p, uint64_t at, uint64_t n);
/* The hashes of the page that address `at` is in; NULL. */
uint64_t *stage_pages_hashes(const struct stage_pages *p, uint64_t at);
bool stage_pages_copy(struct stage_pages *p, uint64_t to, uint64_t from);
/* All positions of a page have this hash. */
void stage_pages_mark(struct stage_pages *p, uint64_t at, uint64_t hash);

/* The pages of a group of a span or mirror: [first, end). */
struct stage_table { uint32_t first, end; const uint8_t *page; /* u64 each, any address */ };
/* The hash before position `at` > 0; 0: there is no page. */
uint64_t stage_pages_before(const struct stage_pages *p, const struct stage_table *t,
                            uint32_t n_groups, int64_t at);
/* Tokens i32 [n], any address, are written to positions from `at` on. */
void stage_pages_wrote(struct stage_pages *p, const struct stage_table *t, uint32_t n_groups,
                       int64_t at, const uint8_t *token, int64_t n, uint64_t before);
uint64_t stage_table_page(const struct stage_table *t, int64_t i);

/* ---- files of pages ---- */

/* What a KEEP says: its flags.  To a stage SAVE and READ have a payload: u64 salt, mark (of what is
 * read) or hash (of the tokens, as pages have it), length, have; u32 groups; of each group u32
 * first, end, u64 each page; i32 each token.  From a stage LIST has a struct kv_key, the context,
 * u32 anew, added, dropped, and the keys; DONE has n_rows 1 if all went well. */
enum stage_keep_op { STAGE_KEEP_SAVE = 1, STAGE_KEEP_READ, STAGE_KEEP_DROP, STAGE_KEEP_LIST,
                     STAGE_KEEP_DONE };
enum { STAGE_KEEP_HEAD = 36, STAGE_KEEP_LIST_HEAD = 28, STAGE_KEEP_MOST = 1 << 20 };
enum { STAGE_KEEPS = 8 }; /* SAVE and READ that go on at a stage at a time */

#endif
