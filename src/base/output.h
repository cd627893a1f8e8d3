/*
 * output - the one door through which a file is written.
 *
 * A guard knows what a call reads: files, all parts of a split model, all files of a checkpoint's
 * directory.  An output that is one of them, by device and inode or by the name that it will have,
 * is an error before anything is computed.  A file that is there and of another kind than the new
 * one stays, too.  The new file is written beside its place and renamed when it is whole.
 *
 * Not for files whose names a directory's owner chooses by itself (store, packed weights, keys and
 * values on disk, the hub's folder).
 */
#ifndef INGLE_BASE_OUTPUT_H
#define INGLE_BASE_OUTPUT_H

#include "base/err.h"
#include "base/file.h"
#include <stdbool.h>
#include <stddef.h>

enum output_kind {
    OUTPUT_MODEL,      /* GGUF */
    OUTPUT_IMPORTANCE, /* GGUF of llama-imatrix, or its older form */
    OUTPUT_WEIGHTS,    /* safetensors */
    OUTPUT_MATRICES,   /* safetensors of logits, hidden states, drafts */
    OUTPUT_SIDE,       /* a text beside a checkpoint's weights; nothing is replaced by it */
    OUTPUT_HTML,       /* a report of ingle eval */
    OUTPUT_PROFILE,    /* of experts */
    OUTPUT_TRACE,      /* of experts: lines of three numbers */
    OUTPUT_COUNTS,     /* of experts: JSON */
    OUTPUT_CHAT,       /* JSON: a list of messages */
    OUTPUT_SESSION,    /* tokens with their keys and values */
    OUTPUT_REQUESTS,   /* a server's list of running requests */
    OUTPUT_ANY,        /* replaces everything: for folders of our own */
    /* what only files that are there are */
    OUTPUT_EMPTY, OUTPUT_GGUF, OUTPUT_PAGE, OUTPUT_JSON, OUTPUT_TEXT, OUTPUT_UNKNOWN
};

/* The key of a GGUF file that was made of a checkpoint: such a file in the checkpoint's folder is
 * no part of it. */
#define OUTPUT_CONVERTED "ingle.converted_from"

/* "a GGUF model" */
const char *output_kind_name(enum output_kind kind);
/* What the file at path is, by its first bytes; a file that is not there or cannot be read is
 * OUTPUT_EMPTY or OUTPUT_UNKNOWN. */
enum output_kind output_kind_of(const char *path);
/* The same relative to a directory's descriptor. */
enum output_kind output_kind_at(int dir, const char *path);

struct output_guard;
MUST_CHECK ingle_status output_guard_create(struct output_guard **out, struct err *err);
void output_guard_free(struct output_guard *g);
/* The call reads path: a file, a part of a split model (with it the others), or a directory; model:
 * it may be one of a checkpoint, with which go the others of its folder.  by: "--like", for
 * messages; copied.  What does not exist is left out: whoever reads it says so. */
MUST_CHECK ingle_status output_guard_reads(struct output_guard *g, const char *by, const char *path,
                                           bool model, struct err *err);
/* The call writes path: an error if it reads it, or writes it under another name. */
MUST_CHECK ingle_status output_guard_writes(struct output_guard *g, const char *by,
                                            const char *path, struct err *err);
/* An error if path is what the call reads, or would be one of its checkpoint's files. */
MUST_CHECK ingle_status output_guard_check(const struct output_guard *g, const char *path,
                                           struct err *err);

struct output {
    const char *path;
    enum output_kind kind;
    const struct output_guard *guard; /* NULL: the caller has asked already */
    bool force; /* a file of another kind is replaced; never one that is read */
    bool keep;  /* as file_new_again() */
};
/* Whether it may be written. */
MUST_CHECK ingle_status output_check(const struct output *o, struct err *err);
/* Opens it; ended by file_new_finish() or file_new_drop(). */
MUST_CHECK ingle_status output_open(struct file_new *f, const struct output *o, struct err *err);
/* All of it. */
MUST_CHECK ingle_status output_save(const struct output *o, const void *bytes, size_t n,
                                    struct err *err);

#endif
