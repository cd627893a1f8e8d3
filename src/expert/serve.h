/*
 * serve - a worker: computes rows of experts for engines that ask (link/link.h).
 *
 * It has a store (store.h), whose experts come from its own file.  One thread does everything, one
 * question after the other.
 */
#ifndef INGLE_EXPERT_SERVE_H
#define INGLE_EXPERT_SERVE_H

#include "expert/expert.h"
#include "expert/store.h"
#include "link/link.h"
#include <stdatomic.h>

struct expert_serve;

struct expert_serve_options {
    const char *address, *key_file;
    bool plain;
    const struct link_hello *hello;          /* who it is; rows, pairs and places are filled in */
    /* [hello.n_layers]: NULL where there are no experts.  Borrowed */
    const struct expert_layer *const *layer;
    struct expert_store *store;
    const struct report_sink *sink;
    const atomic_bool *stop;                 /* ends what is computed, too */
};

/* Listens.  d: the device of the layers; its scratch is taken here. */
MUST_CHECK ingle_status expert_serve_open(struct expert_serve **out, struct device *d,
                                          const struct expert_serve_options *o, struct err *err);
void expert_serve_close(struct expert_serve *s);
const char *expert_serve_name(const struct expert_serve *s); /* where it listens */
/* Answers until *stop. */
void expert_serve_run(struct expert_serve *s);

struct expert_serve_counts {
    uint64_t evals, pairs, refused, failed, peers, places;
    uint64_t cancelled, stopped; /* EVALs that were not wanted; of them those that had begun */
};
/* By the thread that runs it. */
void expert_serve_count(const struct expert_serve *s, struct expert_serve_counts *out);

#endif
