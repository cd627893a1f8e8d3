/*
 * family - one file per family: metadata, names, KV layout, forward pass.
 */
#ifndef INGLE_FAMILY_FAMILY_H
#define INGLE_FAMILY_FAMILY_H

#include "base/json.h"
#include "device/device.h"
#include "expert/expert.h"
#include "kv/kv.h"
#include "model/model.h"

enum family_logits { FAMILY_LOGITS_NONE, FAMILY_LOGITS_LAST, FAMILY_LOGITS_ALL };

/* Rows [row, row + n) of a span that are no tokens: vectors of a picture or a sound, which enter
 * as they are. */
struct family_soft {
    int64_t row, n, width;
    const float *rows; /* f32 [n][width] */
    /* all of a picture, each of whose rows sees all of it where a layer has a window */
    bool both;
};

/* Some consecutive tokens of one timeline: a prefill chunk, one decode token, a draft to
 * verify.  The timeline has been extended by n; the family writes positions at .. at+n-1. */
struct family_span {
    struct kv_timeline *timeline;
    const int32_t *token;
    int64_t n;
    /* position of token[0]: the timeline's length, and after it the rows of its mirror */
    int64_t at;
    enum family_logits want;
    /* of a session's prompt, with fast numerics or few; with fast numerics such spans are the last
     * of a step */
    bool prompt;
    /* how layers that see all before them attend, in a prompt; NULL: to all of it */
    const struct kern_sparse *sparse;
    struct kern_sparse_seen *seen; /* what that did is added; NULL: nobody asks */
    /* how its rows choose pages where a stream has shadow keys; NULL: they see all */
    const struct kern_select *select;
    struct kern_select_seen *selected; /* what that did is added; NULL: nobody asks */
    const uint8_t *whole; /* of select: as in kern/select.h */
    const struct family_soft *soft; /* [n_soft], ascending */
    int64_t n_soft;
};

/* Rows of one span that another timeline has, too: what is kept of rows [row, row + n) of the step
 * is also written to positions [at, at + n) of this timeline.  So the span of a branch (drafted
 * tokens that part from those of another span) begins after the rows that both share. */
struct family_mirror {
    struct kv_timeline *timeline;
    int64_t row, n, at;
};

/* A step is the only thing that computes: all spans run together as one matrix of rows. */
struct family_step {
    const struct family_span *span;
    int64_t n_spans, n_rows;
    int64_t n_logits; /* rows of logits wanted, in span order */
    const struct family_mirror *mirror;
    int64_t n_mirrors;
};

enum family_tap { FAMILY_TAP_EMBED, FAMILY_TAP_LAYER, FAMILY_TAP_NORM };
/* The stream after embedding, after a layer, and the head's input (all rows).  x is valid
 * for the call, and device_read_rows() comes before it is looked at. */
typedef void family_tap_fn(void *arg, enum family_tap tap, int layer, struct rows x);

/* Whether a tap is: rows that nobody asks for need not come from another process. */
typedef bool family_tap_wants_fn(void *arg, enum family_tap tap, int layer);

/* What a layer computed on the way, by the name that the reference has for it ("attn_out",
 * "router_ids"): for tests.  Integers come as floats; x is valid for the call. */
typedef void family_part_fn(void *arg, const char *name, int layer, struct rows x);

/* How much rows [from, from + n) of the one timeline of a step attend to each position before them,
 * in layers that see everything: the largest weight of all query heads and layers.  best, room: f32
 * [n][stride]; best begins as zeros. */
struct family_probe {
    int64_t from, n, stride;
    float *best, *room;
};
/* NULL: rows of such a model can be probed; else why not. */
const char *family_probe_refuses(const struct kv_spec *kv);

/* Some layers of the network alone: [from, to).  Between layers there are *border rows*: what the
 * layers after a border need of each row, f32, of a width that the family says. */
struct family_range {
    int64_t from, to;
    struct rows in;  /* [n_rows][border of from], where from > 0 */
    struct rows out; /* written: [n_rows][border of to], unless the head is computed */
    bool head;       /* what comes after the last layer, too */
    /* from is after the last layer: `in` has the rows of wanted logits alone, as collapse() leaves
     * them */
    bool picked;
};

struct family_forward {
    struct device *device;
    const struct family_step *step;
    const struct kv_spec *kv;
    int64_t n_ctx;          /* positions a timeline may have */
    const struct family_probe *probe; /* NULL: nobody asks */
    struct rows logits;     /* written: [n_logits][n_vocab] */
    const struct family_range *range; /* NULL: all layers and the head */
    family_tap_fn *tap;     /* may be NULL */
    family_tap_wants_fn *tap_wants; /* NULL: all taps are wanted */
    void *tap_arg;
    family_part_fn *part;   /* may be NULL */
    void *part_arg;
};

/* What every family says about a loaded model. */
struct family_info {
    int64_t n_layers, n_embd, n_vocab, n_ctx; /* n_ctx: what the model was made for */
    int64_t n_experts, n_experts_used;
    const char *size_label;                   /* "26B-A4B"; "" if unknown */
    bool large;                               /* Gemma 4: chat rules of the larger sizes */
    bool both; /* rows of a picture see all of it (struct family_soft) */
};

/* ---- drafting ---- */

/* What a drafter takes from its target beside the streams that it sees: FAMILY_TAP_* in the
 * target's forward(). */
struct family_ends {
    const struct device_matrix *embed, *head; /* [n_vocab][n_embd]; one matrix, if they are tied */
    float embed_scale, softcap;               /* of embedded rows (1: none); of logits (0: none) */
    const struct device_matrix *collapse;     /* what collapse() of struct family reads, or NULL */
};

struct family;

struct family_draft_target {
    const struct family *family;
    const void *self;                /* borrowed until free() */
    const struct family_info *info;
};

/* A logit that no draw takes, and that is a number. */
#define FAMILY_NEVER (-1e30f)
enum { FAMILY_MOST_COLUMNS = 64 }; /* n_only of a round, at most */

/* What a drafter says about itself. */
struct family_draft_info {
    int64_t most;       /* tokens that a round drafts, at most */
    /* positions from the timeline's length on that a round writes in the drafter's streams */
    int64_t rows;
    bool confidence;    /* next() fills it */
};

/* For experiments: none of it changes a text. */
enum family_draft_tap {
    FAMILY_DRAFT_TAP_AFTER, /* after the tapped layer, as drafters are trained */
    FAMILY_DRAFT_TAP_EARLY, /* before the factor at the layer's end */
    /* a layer earlier: the list read as layers whose inputs are tapped */
    FAMILY_DRAFT_TAP_UPSTREAM,
};
struct family_draft_options {
    /* which positions a block's rows see, or another choice, by the kind's name for it; NULL: as
     * the file says */
    const char *rule;
    int64_t block;             /* rows of a round; 0: as trained */
    int64_t context;           /* a round sees so many of the newest positions; 0: all */
    enum family_draft_tap tap;
};

/*
 * A round of drafting for some timelines, of which nothing is pending but the anchor: the newest
 * token, which the target has drawn and not computed.  forward.step: a span each, token = the
 * anchor, n = 1, at = its position, the timeline extended by info.rows; forward.kv: the drafter's
 * streams alone, with the timeline's groups.  Spans are ordered by falling width, so that those
 * that still draft are the first ones.  The arena of begin() lasts until the round ends.
 */
struct family_round {
    struct family_forward forward;
    const struct kv_spec *target; /* the target's streams */
    const int64_t *from; /* [n_spans]: what the drafter keeps of positions [from, at) is there */
    int64_t n_drafts;    /* tokens of the widest span: 1 .. info.most */
    /* Rows for logits of several drafts, [n][n_vocab]; n = 0: there are none.  Of each row the
     * columns `only` are wanted (n_only 0: all), the tokens that texts have here; the others say
     * FAMILY_NEVER, and stay so. */
    struct rows wide;
    const struct device_columns *only;
    int64_t n_only;
    /* what next() gets as logits, before it; a drafter may leave those in rows of `wide` and name
     * them here */
    struct rows out;
    void *state;         /* the drafter's own, in the arena */
};

/*
 * A network that drafts: from what the target computed at positions before n and the token at n,
 * the tokens after it. What it keeps of a position (its own keys and values, a hidden row) is in
 * streams in groups of its own, which the runner appends to the target's: rewind, fork, restore
 * points and files serve both.  It has no other state. Whatever it computes changes no text, only
 * how much of a draft is accepted.
 */
struct family_draft {
    const char *kind;   /* "mtp", "dflash", "dflash2", "dspark", "model" */
    /* A checkpoint of this kind, by its config.json ("architectures"); config(), rename and alias
     * as in struct family. NULL: there are no such checkpoints, or no other names. */
    bool (*named)(struct json_object *config);
    ingle_status (*config)(struct json_object *config, struct io_meta *out,
                           const struct report_sink *sink, struct err *err);
    model_rename_fn *rename, *alias;
    /* The other way, as in struct family: names of the file's tensors in a checkpoint, and its
     * config.json.  NULL: none is made. */
    bool (*hf_name)(const struct io_file *file, const char *name, char *out, size_t n_out);
    ingle_status (*to_config)(const struct io_file *file, struct json_object *out, struct err *err);
    /* A file of this kind, for a target of that family; m may be the target's own file.  Of a GGUF,
     * m may have the file's own names. */
    bool (*fits)(const struct family *target, const struct model *m, const struct io_meta *meta);
    /* Checks the pairing (widths, vocabulary, taps) before it binds weights; errors say what would
     * fit. */
    ingle_status (*bind)(void **self, const struct family_draft_target *target, struct model *m,
                         const struct io_meta *meta, struct family_draft_info *info,
                         struct err *err);
    /* Before kv(), for experiments; NULL: nothing can be set. */
    ingle_status (*set)(void *self, const struct family_draft_options *o,
                        struct family_draft_info *info, struct err *err);
    ingle_status (*kv)(const void *self, const struct kv_types *types, struct kv_spec *out,
                       struct err *err);
    /* Of every row of the target, with its step or later.  begin() before its forward(): takes from
     * the arena what tap() fills; tap() gets the target's taps; end(), after it, writes what is
     * kept of the step's rows, f->kv being the drafter's streams.  Rows that are rejected later are
     * written again.  In a dry run nothing is read or written. */
    void *(*observe_begin)(const void *self, const struct family_forward *f);
    void (*observe_tap)(const void *self, void *state, enum family_tap tap, int layer,
                        struct rows x);
    /* Which taps it looks at; NULL: none.  The target's keys and values, which are with its
     * layers, are read by a drafter with reads_target. */
    bool (*observe_wants)(const void *self, enum family_tap tap, int layer);
    bool reads_target;
    void (*observe_end)(const void *self, const struct family_forward *f, void *state);
    /* What tap() has filled, [n_rows][width]; state NULL: without memory.  Rows can be observed
     * later, those of several steps at once: begin(), these rows as they were, end(), f being a
     * step of theirs.  Width 0: their tokens are enough. NULL: rows are observed with their
     * step. */
    struct rows (*observed)(const void *self, const void *state, int64_t n_rows);
    /* A round: begin(), then next() for j = 0, 1, ... while anybody drafts.  next(): logits
     * [n_spans][n_vocab] of the j-th drafted token of the first n_spans spans, token[i] being what
     * span i has as its token before it (j = 0: the anchor).  confidence [n_spans] (or NULL): how
     * likely the target is to draw it, given the ones before. */
    void (*begin)(const void *self, struct family_round *r);
    void (*next)(const void *self, struct family_round *r, int64_t j, const int32_t *token,
                 int64_t n_spans, struct rows logits, float *confidence);
    void (*free)(void *self);
};

/* The kinds of networks, NULL-ended. */
extern const struct family_draft *const family_drafts[];
/* The kind of a file, or NULL: of a checkpoint by its config.json, of a GGUF (config NULL) by keys
 * and tensors. */
const struct family_draft *family_draft_of(const struct family *target, const struct model *m,
                                           const struct io_meta *meta, struct json_object *config);

/* What a drafter's file says of the model that it was made for; 0: it does not. */
enum { FAMILY_ABOUT_TAPS = 16 };
struct family_draft_about {
    const char *family;                       /* "Gemma 4" */
    bool itself;                              /* the whole model is in the file */
    int64_t n_embd, n_vocab, n_layers;        /* n_layers: at least */
    int64_t tap[FAMILY_ABOUT_TAPS];           /* layers after which it reads, from 0 */
    int n_taps;
};
void family_draft_describe(const struct family_draft *k, const struct model *m,
                           const struct io_meta *meta, struct family_draft_about *out);

struct family {
    const char *arch;             /* general.architecture */
    const char *const *hf_types;  /* model_type values of config.json, NULL-ended */
    /* config.json to the GGUF keys of the family.  Numbers that it lacks and that have a
     * published value are reported. */
    ingle_status (*config)(struct json_object *config, struct io_meta *out,
                           const struct report_sink *sink, struct err *err);
    model_rename_fn *rename;      /* safetensors name to GGUF name */
    model_rename_fn *alias;       /* names of other GGUF writers to the usual ones, or NULL */
    /* Reads and checks the hyper-parameters, binds the weights.  *self ends with free(). */
    ingle_status (*bind)(void **self, struct model *m, const struct io_meta *meta,
                         struct family_info *info, struct err *err);
    ingle_status (*kv)(const void *self, const struct kv_types *types, struct kv_spec *out,
                       struct err *err);
    /* errors stay in the device */
    void (*forward)(const void *self, const struct family_forward *f);
    /* Floats of a border row before this layer (after the last one: n_layers). */
    int64_t (*border)(const void *self, int64_t layer);
    int64_t (*tap_width)(const void *self); /* floats of a row of FAMILY_TAP_LAYER */
    /* What the head reads of rows after the last layer, x [n][border of n_layers]: y [n][n_embd].
     * NULL: these rows themselves. */
    void (*collapse)(const void *self, struct device *d, struct rows x, struct rows y);
    /* Layers [from, to) read a stream that an earlier layer writes; its rows are in the border row,
     * and whoever has the layers has the stream, too.  NULL: none does. */
    bool (*borrows)(const void *self, uint32_t stream, int64_t from, int64_t to);
    void (*free)(void *self);
    /* The experts of a layer; NULL: it has none. */
    const struct expert_layer *(*experts)(const void *self, int64_t layer);
    void (*ends)(const void *self, struct family_ends *out);
    /* The factor on the stream at a layer's end, which its tap has; NULL: there is none. */
    float (*layer_scale)(const void *self, int64_t layer);
    /* GGUF name to safetensors name, the inverse of rename; "blk.3.ffn_up_exps.5.weight" is an
     * expert that is a tensor of its own. */
    model_rename_fn *hf_name;
    /* The config.json of such a checkpoint, from the keys and tensors of a GGUF file. */
    ingle_status (*to_config)(const struct io_file *file, struct json_object *out, struct err *err);
};

/* NULL when there is no such family. */
const struct family *family_by_arch(const char *arch);
const struct family *family_by_hf_type(const char *model_type);
/* "Gemma 4 (gemma4), ..." for messages. */
const char *family_names(void);

/* ---- shared by families ---- */

/* A drafter that does not fit: "'PATH': 'FIELD' is IS, but WHAT WANT: what fits is ..." ("the
 * target's width is"). */
MUST_CHECK ingle_status family_draft_unfit(const struct family_draft_target *t, const char *path,
                                           const char *field, int64_t is, const char *what,
                                           int64_t want, struct err *err);

/* Logits of rows x with the head w in rows [first, first + x.n) of r->wide, which are returned. */
struct rows family_draft_head(const struct family_round *r, const struct device_matrix *w,
                              struct rows x, int64_t first);

/* Rows of the step that are no tokens: x [n_rows] gets their vectors, of those that are as wide;
 * tokens [n_rows] have `stand_in` there. */
void family_put_soft(const struct family_forward *f, struct rows x, int32_t *tokens,
                     int32_t stand_in);
/* Positions and tokens of all rows of the step: host memory of the arena, [n_rows]. */
int64_t *family_positions(const struct family_forward *f);
int32_t *family_tokens(const struct family_forward *f);
/* Which of the step's rows are a prompt's: device_prompt_rows(). */
void family_prompt_rows(const struct family_forward *f);

/* Rows [first, first + n) of a step as a step of their own, for what would need much scratch for
 * all of them and adds nothing to the pages.  Its spans are the arena's; after the last block comes
 * family_block_end(). */
struct family_block {
    struct family_forward forward;
    struct family_step step;
};
void family_block_begin(struct family_block *b, const struct family_forward *f, int64_t first,
                        int64_t n);
void family_block_end(const struct family_forward *f);

/* NULL: rows can be computed in such a way, in one of the layers that see all before a position;
 * else why they are not, whatever a span says. */
const char *family_way_refuses(enum kv_way_kind kind, const struct device *d,
                               const struct kv_spec *kv);

/* Appends k and v rows to a stream of the KV spec / attends over it. */
void family_kv_append(const struct family_forward *f, uint32_t stream, struct rows k,
                      struct rows v);
void family_attend(const struct family_forward *f, uint32_t stream, struct rows q,
                   int64_t n_heads, struct rows out, int64_t window, float scale);
/* The same for rows that do not see what their positions say: row i of the step sees (last - n,
 * last], or with n = 0 all of [0, last]. */
struct family_view { int64_t last, n; };
/* The first index that a window shows the row at index `at` of a timeline: windows count positions,
 * among which there may be gaps. */
int64_t family_window_first(const struct kv_timeline *t, int64_t at, int64_t window);
void family_attend_views(const struct family_forward *f, uint32_t stream, struct rows q,
                         int64_t n_heads, struct rows out, const struct family_view *view,
                         float scale);
/* The same for streams of plain rows (device.h: rows in pages). */
#define FAMILY_NO_STREAM UINT32_MAX
struct family_choice { int32_t *sel, *count; int64_t top_k; };
struct family_latent {
    uint32_t near, far;  /* streams; far may be FAMILY_NO_STREAM */
    int64_t window;
    const struct device_vector *sink;
    const struct family_choice *choice; /* NULL: all far rows */
    /* of each row of the step, n at most the window; without far rows; NULL: what positions say */
    const struct family_view *view;
};
void family_rows_append(const struct family_forward *f, uint32_t stream, struct rows x);
/* Row i of y: what the stream has of the position before the step's span i; zeros where that is
 * missing. */
void family_rows_before(const struct family_forward *f, uint32_t stream, struct rows y);
/* Rows of the stream are kept as kern_row_hadamard() of themselves, which FP4 was made for:
 * family_compress() writes them so, and queries for them must be rotated, too. */
bool family_is_rotated(const struct family_forward *f, uint32_t stream);
void family_compress(const struct family_forward *f, uint32_t in, struct rows x, uint32_t out,
                     bool overlap, const struct device_vector *norm, float eps,
                     const double *inv_freq, int64_t n_pairs);
/* Room for the choice of n rows, up to top_k each; that of the rows from `first` on. */
struct family_choice family_choice_rows(const struct family_forward *f, int64_t n, int64_t top_k);
struct family_choice family_choice_slice(const struct family_choice *c, int64_t first);
void family_select(const struct family_forward *f, uint32_t keys, struct rows q, struct rows weight,
                   int64_t n_heads, const struct family_choice *out);
void family_attend_latent(const struct family_forward *f, const struct family_latent *a,
                          struct rows q, int64_t n_heads, struct rows out, float scale);

/* The head: `output.weight` [n_vocab][n_embd] where the file has one, or the embedding.
 * ARCH.tie_word_embeddings decides where there is none (absent: `tied`).  A head with the bytes of
 * the embedding takes no memory. */
MUST_CHECK ingle_status family_bind_head(struct model *m, const struct io_meta *meta,
                                         const char *arch, bool tied, int64_t n_vocab,
                                         int64_t n_embd, const struct device_matrix *embed,
                                         const struct device_matrix **out, struct err *err);

/* Of the layers that are computed: the first one, the end; and whether the embedding is. */
int64_t family_first(const struct family_forward *f);
int64_t family_end(const struct family_forward *f, int64_t n_layers);
/* After the last layer of a range: the border rows, or NULL where the head is next. */
const struct rows *family_border(const struct family_forward *f);

/* The rows whose logits are wanted, gathered; what follows is computed as for an answer's rows. */
struct rows family_wanted(const struct family_forward *f, struct rows x);
/* NULL: a stream's pages may be on the card; else why not. */
const char *family_card_refuses(struct device *d, const struct kv_spec *kv, uint32_t stream);
/* Rows become zeros. */
void family_clear_rows(struct device *d, struct rows x);
void family_tap_rows(const struct family_forward *f, enum family_tap tap, int layer,
                     struct rows x);

void family_part_rows(const struct family_forward *f, const char *name, int layer, struct rows x);
/* Host integers [n][width]; entries from count[i] on (count may be NULL) become -1. */
void family_part_ints(const struct family_forward *f, const char *name, int layer, const int32_t *x,
                      const int32_t *count, int64_t n, int64_t width);

#endif
