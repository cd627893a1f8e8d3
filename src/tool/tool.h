/*
 * tool - jobs on files that need neither an engine nor a command line.
 */
#ifndef INGLE_TOOL_TOOL_H
#define INGLE_TOOL_TOOL_H

#include "base/err.h"
#include "base/output.h"
#include "base/report.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tool_inspect_options {
    bool json;
    bool tensors; /* list every one */
    const char *drafts; /* for what it drafts; NULL: for nothing */
};

/* What is in a container: metadata, bytes by type, tensors.  at: a GGUF that is in memory
 * and is called `path`, or NULL: the file at path. */
MUST_CHECK ingle_status tool_inspect(const char *path, const void *at, size_t n_bytes,
                                     const struct tool_inspect_options *o,
                                     const struct report_sink *sink, struct str *out,
                                     struct err *err);

/* Token ids: FILE.safetensors: its tensor 'input_ids' of I32 or I64; FILE.bin: 32 bits each, little
 * endian; else text, as below.  *ids [*n] is ended with mem_free(). */
MUST_CHECK ingle_status tool_ids_read(const char *path, int32_t **ids, size_t *n, struct err *err);
/* The same for 32 bits each, whatever the file is called. */
MUST_CHECK ingle_status tool_ids_read_bin(const char *path, int32_t **ids, size_t *n,
                                          struct err *err);
/* Whether tool_ids_read() takes a file of this name for one of numbers, not of text. */
bool tool_ids_binary(const char *path);
/* A JSON array of numbers, or numbers between blanks or commas.  name: for errors. */
MUST_CHECK ingle_status tool_ids_parse(const char *name, const char *text, size_t n_text,
                                       int32_t **ids, size_t *n, struct err *err);

/* A float32 matrix of a safetensors file, read row by row. */
struct tool_matrix;
MUST_CHECK ingle_status tool_matrix_open(struct tool_matrix **out, const char *path,
                                         const char *name, struct err *err);
void tool_matrix_close(struct tool_matrix *m);
int64_t tool_matrix_rows(const struct tool_matrix *m);
int64_t tool_matrix_width(const struct tool_matrix *m);
MUST_CHECK ingle_status tool_matrix_row(const struct tool_matrix *m, int64_t i, float *dst,
                                        struct err *err);

/* Writes float32 matrices [n][width] as one safetensors file, or int32 ones; width 0: of one axis,
 * [n]. */
struct tool_part {
    const char *name;
    float *at;
    int64_t n, width;
    int32_t *ints; /* instead of at, or NULL */
};
MUST_CHECK ingle_status tool_matrices_save(const char *path, const struct tool_part *part,
                                           size_t n_parts, struct err *err);

/* How far rows of numbers are from those of a reference; rows are added one by one. */
/* The largest of n numbers, the first of equal ones. */
static inline int64_t tool_top_of(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

struct tool_difference {
    int64_t n_rows, n_same_top; /* rows; those whose largest element is at the same place */
    double kl_sum, kl_max;      /* KL divergence of softmax(reference) from softmax(row), nats */
    double square_sum, reference_sum, max_abs;
};
void tool_difference_add(struct tool_difference *d, const float *row, const float *reference,
                         int64_t width);
double tool_difference_rms(const struct tool_difference *d); /* relative */

/* -log softmax(row)[token] */
double tool_surprise(const float *row, int64_t width, int32_t token);

/* Compares the float tensors of two safetensors files that have the same name and shape:
 * a line each in *out (or JSON).  *n_other: tensors that only one of them has, or that
 * differ in shape. */
MUST_CHECK ingle_status tool_compare(const char *a, const char *b, bool json, struct str *out,
                                     int64_t *n_other, struct err *err);

struct pool;

/* What the threads of p read from memory together: bytes a second, the best of n_rounds
 * passes over a buffer of n_bytes (256 MiB or more, to be out of every cache), each thread
 * reading eight interleaved streams. */
MUST_CHECK ingle_status tool_machine_bandwidth(struct pool *p, size_t n_bytes, int n_rounds,
                                               double *bytes_per_s, struct err *err);
/* The same in rounds that something else comes between: the buffer is kept. */
struct tool_memory { char *at; size_t n_bytes; };
MUST_CHECK ingle_status tool_memory_create(struct tool_memory *m, struct pool *p, size_t n_bytes,
                                           struct err *err);
void tool_memory_release(struct tool_memory *m);
double tool_memory_read(const struct tool_memory *m, struct pool *p, int n_streams);

/* The same in rounds of 0.2 s or more, out [n_rounds]; others: the share of n_processors that other
 * processes used meanwhile. */
struct tool_round { double bytes_per_s, others; };
MUST_CHECK ingle_status tool_memory_rounds(struct pool *p, size_t n_bytes, int n_processors,
                                           struct tool_round *out, int n_rounds, struct err *err);

/* What the arithmetic units of the threads do together, instruction by instruction, below a
 * mask of instruction bundles: "fma", "maddubs", "vnni512", ...; returns how many. */
struct tool_peak { const char *name; double ops_per_s; };
enum { TOOL_PEAKS = 8 };
size_t tool_peaks(struct pool *p, uint32_t cpu, struct tool_peak *out, size_t n_max);

/* Processor time that was used since the machine started, by everyone and by this process, in
 * seconds: what others took of it shows how far to trust a measurement. */
struct tool_busy { double all, own; };
void tool_busy_read(struct tool_busy *b);
/* The share of n_processors that others used between two readings `seconds` apart. */
double tool_busy_foreign(const struct tool_busy *from, const struct tool_busy *to, double seconds,
                         int n_processors);

/* The share of this process's own memory that is on huge pages. */
double tool_huge_share(void);

/* The kernels of attention and products that this machine chooses below a mask of instruction
 * bundles: tested against the plain ones, then measured with data in the caches. */
struct tool_kernel {
    const char *type, *name; /* "Q4_K", the kernel's name */
    const char *many;        /* the kernel of many rows (AMX); NULL: none */
    int64_t many_from;       /* from how many on it is faster here; INT64_MAX: never */
    const char *fast, *recipe; /* the kernel of --numerics fast and its arithmetic; NULL: none */
    double ops_per_s;        /* multiplications and additions of all threads; 0: not measured */
};
MUST_CHECK ingle_status tool_kernels(struct pool *p, uint32_t cpu, const struct report_sink *sink,
                                     struct tool_kernel *out, size_t n_max, size_t *n,
                                     int *n_failed, struct err *err);

/* The graphics card that --gpu auto takes; false: why there is none. */
struct tool_card {
    char name[64];
    int number, driver;  /* driver: its version, 1000 * major + 10 * minor */
    int major, minor;    /* compute capability */
    uint64_t bytes, free_bytes;
    bool integrated;     /* its memory is the host's */
};
bool tool_card(struct tool_card *out, char *why, size_t n_why);

/* ---- models.c: published models, and what they need (tool/models.inc) ---- */

struct tool_model {
    const char *name, *code; /* "Gemma 4 31B", "Q4_0" */
    const char *hub, *drafter; /* of -m hf: and of --draft hf:; NULL: none is known */
    /* millions of bytes: in memory; read for a token, without experts; all experts */
    uint64_t need_mb, token_mb, experts_mb;
    int n_experts, n_used;   /* of a layer, and of those for a token; 0: none */
    /* times as fast when three of four drafts are right; 0: not measured */
    double drafts;
};
const struct tool_model *tool_models(size_t *n);
enum tool_fit {
    TOOL_FITS,
    TOOL_TIGHT /* leaves others less than it should */,
    TOOL_FROM_DISK /* some experts */,
    TOOL_TOO_LARGE
};
/* Of so many bytes of free memory, a part of which stays free; *share: of the experts in memory, 0
 * to 1. */
enum tool_fit tool_model_fit(const struct tool_model *m, uint64_t memory, double *share);
/* Tokens a second in decode, without drafts: all that a token needs is read from memory, and the
 * share of experts that is missing there from a disk of disk_rate.  Rates in bytes a second. */
double tool_model_rate(const struct tool_model *m, double share, double memory_rate,
                       double disk_rate);

/* ---- check.c, files.c: what a model file holds ---- */

struct tool_check {
    size_t n_problems, n_warnings; /* something is wrong; something is unusual */
    char arch[48], size[80];       /* "gemma4"; "Gemma 4 31B", or a shape */
    char encoders[200];            /* of pictures and sound (tower_describe()), or "" */
    bool published;                /* the shape is one of a published model */
    bool supported;                /* ingle computes this family */
    bool instruction;              /* it has a chat template ... */
    char chat[64];                 /* ... of this name, or "unknown" */
    size_t n_tensors, n_files;
    uint64_t n_bytes, sum;         /* sum: of all values, as they are stored */
};
/* Reads all of it.  drafts: for which models the file drafts (ingle_model_drafts()), or NULL.
 * *text: a line for each finding and one for the model, or JSON.  A file that cannot be read as a
 * model is a finding, not an error. */
MUST_CHECK ingle_status tool_check(struct pool *p, const char *path, const char *drafts, bool json,
                                   const struct report_sink *sink, struct tool_check *out,
                                   struct str *text, struct err *err);
/* The tensors of two GGUF files or checkpoints (names of GGUF) that have the same shape: error of a
 * against b. *n_other: tensors that only one of them has, or that differ in shape. */
MUST_CHECK ingle_status tool_compare_files(struct pool *p, const char *a, const char *b, bool json,
                                           const struct report_sink *sink, struct str *out,
                                           int64_t *n_other, struct err *err);

/* ---- imatrix.c: importance of columns ---- */

enum { TOOL_IMATRIX_CTX = 8192 }; /* tokens of a chunk, at most */
struct tool_imatrix_options {
    const char *model;        /* GGUF file */
    const char *dataset;      /* the text's name */
    const char *out;
    int64_t n_ctx;            /* tokens of a chunk */
    uint64_t n_chunks;        /* 0: all */
    uint64_t save_every;      /* chunks */
    int n_threads;            /* 0: one for each physical core */
    const struct output_guard *guard; /* what the call reads; NULL: not known */
    bool force;               /* a file of another kind, model or text is replaced */
    const char *const *in;    /* [n_in]: files that are added */
    size_t n_in;
    int32_t bos;              /* replaces the first token of each chunk; -1: none does */
};
/* Sums of squares of what each matrix of the layers is multiplied with, over the chunks of ids,
 * into a file as llama-imatrix writes it; a file of the same text and model that is there already
 * is continued. */
MUST_CHECK ingle_status tool_imatrix(const int32_t *ids, size_t n,
                                     const struct tool_imatrix_options *o,
                                     const struct report_sink *sink, struct str *text,
                                     struct err *err);
/* The sums of the files o->in together, which are of one model; GGUF or the older .dat. */
MUST_CHECK ingle_status tool_imatrix_merge(const struct tool_imatrix_options *o,
                                           const struct report_sink *sink, struct str *text,
                                           struct err *err);

/* ---- quantize.c: another code for the tensors of a file ---- */

/* Which part of a checkpoint (tool/source.h) is read. */
enum tool_source_part {
    TOOL_SOURCE_MAIN,   /* the model; of a checkpoint with nothing but a drafter: that */
    TOOL_SOURCE_MTP,    /* DeepSeek V4: the block that predicts one token more */
    TOOL_SOURCE_DSPARK, /* DeepSeek V4: the stages that draft a block */
    TOOL_SOURCE_TOWER,  /* Gemma 4: the encoders of pictures and sound, as an mmproj file */
};

struct tool_source_options {
    enum tool_source_part part;
    /* a drafter's: the checkpoint or GGUF file that has the vocabulary; NULL: it has its own */
    const char *target;
    const char *name;   /* general.name; NULL: that of the directory */
    bool back;          /* a GGUF file as the checkpoint that it could have been made of */
    const struct output_guard *guard; /* what the call reads; NULL: not known */
    /* of its floats: "f32", "f16", "bf16"; NULL: as they are, and BF16 for codes */
    const char *back_type;
};

/* "*.ffn_down*", "Q6_K" or "COPY"; exact: the whole name, which need not be there */
struct tool_rule { const char *pattern, *code; size_t n_pattern; bool exact; };

struct tool_quantize_options {
    /* a code or a recipe; NULL with like, or: types that hold the values.  With fit_bytes NULL or
     * a partial recipe */
    const char *code;
    const char *like;              /* the codes of the tensors of this file; NULL: none */
    const char *imatrix;           /* GGUF file with importance; NULL: none */
    const struct tool_rule *rule;  /* [n_rules], the last one that fits has the last word */
    size_t n_rules;
    uint64_t fit_bytes;            /* codes by measured errors, so many bytes at most; 0: no */
    bool pure;                     /* the recipe's code for all tensors that do not stay */
    bool requantize;               /* no warning of a source that is quantised already */
    bool dry;                      /* only say what would be done */
    /* codes of 4 to 8 bits of a checkpoint stay, whatever the recipe */
    bool keep_coded;
    uint64_t split_bytes, split_tensors; /* parts of at most so much; 0: any */
    bool keep_split;               /* the parts of the source, which is a GGUF file */
    const char *job;               /* for progress; NULL: "quantize" */
    const struct output_guard *guard; /* what the call reads; NULL: not known */
    /* files of another kind are replaced, and a file is written that ingle would not load */
    bool force;
    const struct tool_source_options *source; /* or NULL */
};

/* Whether the recipe `code` leaves tensors as they are (experts: Q4_K_DENSE), so that fit_bytes can
 * choose the others. */
bool tool_quantize_is_partial(const char *code);

/* Writes the tensors of the GGUF file or checkpoint (tool/source.h) `in` to the GGUF `out`; *text
 * is a summary.  The threads of p work on rows; memory: a few MiB a thread.  With source->back `in`
 * is a GGUF file, and `out` a directory that becomes a checkpoint.  What a call that was ended has
 * written is not written again. */
MUST_CHECK ingle_status tool_quantize(struct pool *p, uint32_t cpu, const char *in, const char *out,
                                      const struct tool_quantize_options *o,
                                      const struct report_sink *sink, struct str *text,
                                      struct err *err);

#endif
