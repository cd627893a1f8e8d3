/*
 * store - experts that do not all fit in memory: slots in memory, the rest in a file.
 *
 * One store is the keeper of all experts of a model (model_experts.keeper).  Its memory is taken
 * once: slots of the sizes that extents have.  Most hold residents, chosen by policy.h; the others
 * are for experts that are read for one use, and for early reads.  The tier expert_tiered computes
 * what is there while the rest is read; when a step needs more experts than there are slots, they
 * come in waves.  Results are the bits of expert_ram: which experts are resident changes only the
 * time.
 *
 * All functions but those of counts are called by the thread of the steps.  Nothing is allocated
 * within a step.
 */
#ifndef INGLE_EXPERT_STORE_H
#define INGLE_EXPERT_STORE_H

#include "expert/expert.h"
#include <sys/types.h>

struct expert_store;
struct fetch_hook;

enum expert_io { EXPERT_IO_AUTO, EXPERT_IO_DIRECT, EXPERT_IO_CACHED };
enum expert_by { EXPERT_BY_AUTO, EXPERT_BY_THREADS, EXPERT_BY_URING };
enum expert_verify { EXPERT_VERIFY_FIRST, EXPERT_VERIFY_ALWAYS, EXPERT_VERIFY_OFF };

struct expert_store_options {
    uint64_t budget_bytes; /* of slots; at least expert_store_least() */
    int64_t n_used;        /* experts that a row chooses */
    enum expert_io io;
    enum expert_by by;     /* who reads; auto: io_uring where the kernel allows it */
    enum expert_verify verify; /* checksums: at an expert's first read; at each; never */
    /* most early reads a layer; -1: as many as the disk has time for, where they pay; 0: none */
    int early;
    bool lock;             /* slots stay in memory */
    uint64_t stall_ns;     /* no read ends for so long: the step fails; 0: 30 s */
    const char *trace;     /* file for "step,layer,expert" lines; NULL: none */
    const char *profile;   /* file of uses, kept from run to run; NULL: none.  Borrowed */
    uint64_t identity;     /* whose profile it is */
    const struct report_sink *sink;
    /* For tests: instead of what the system says of memory: short, and why. */
    bool (*is_short)(void *arg, char *why, size_t n);
    void *short_arg;
    /* For tests: what reads do (fetch.h); and when shake is set, experts leave at random. */
    const struct fetch_hook *hook;
    uint64_t shake;        /* seed of random evictions and useless early reads; 0: none */
};

/* The least budget for the experts of m: INGLE_LIMIT below it. */
uint64_t expert_store_least(const struct model *m);
/* After model_load_with() without experts; before the first step.  The store is the keeper until
 * it is closed. */
MUST_CHECK ingle_status expert_store_open(struct expert_store **out, struct model *m,
                                          const struct expert_store_options *o, struct err *err);
void expert_store_close(struct expert_store *s);

/* Writes the profile, if there is one; expert_store_close() does so, too, and expert_store_tend()
 * every ten minutes.  False: it cannot be written, which is reported. */
bool expert_store_save(struct expert_store *s);

/* Between steps, at any time now (clock_now()); looks at memory once in EXPERT_LOOK_NS.  Where it
 * is short, a tenth of the slots is given back to the system, at most half of all; after
 * EXPERT_QUIET_NS in which it was not, a tenth is taken again at each look. Both are reported.  Not
 * with lock. */
#define EXPERT_LOOK_NS ((uint64_t)2000000000)
#define EXPERT_QUIET_NS ((uint64_t)300000000000)
void expert_store_tend(struct expert_store *s, uint64_t now);

struct expert_store_counts {
    uint64_t slots, resident, experts;
    uint64_t slot_bytes, expert_bytes;         /* in memory; of all */
    /* of experts of a layer in a step; early_hits: misses that were read early */
    uint64_t choices, hits, misses, early_hits;
    /* of early_hits: they were there when they were chosen */
    uint64_t early_in_time;
    uint64_t early_reads, failed_reads, evictions;
    /* experts whose last read failed; reads that do not end */
    uint64_t bad, stuck;
    /* the last failure, with file, layer and expert; "": none */
    char trouble[320];
    uint64_t reads, read_bytes, busy_ns;       /* of the file; while reads were under way */
    uint64_t stall_ns;                         /* steps waited for reads */
    bool direct, packed, by_uring;
    /* now, other than to try; always and never if so asked */
    bool reads_early;
    int64_t early_tries;                       /* comparisons of steps with and without */
    /* time of steps with early reads, by those without, less 1; share of guesses that were right */
    double early_change, early_right;
};
void expert_store_count(struct expert_store *s, struct expert_store_counts *out);
struct expert_layer_counts {
    int64_t layer;
    uint64_t choices, hits, early_hits, read_bytes, stall_ns;
};
/* Of layer i of model_experts_at().  Both: any thread; as of the last layer that was computed. */
void expert_store_count_layer(struct expert_store *s, size_t i, struct expert_layer_counts *out);

/* Experts ids [n] of a layer, the likeliest first, may be chosen soon: as many as the disk has time
 * for are read into slots for one use, after every demand.  They never take a resident's place. */
/* For whoever knows what will be used: expert e of a layer gets a key as of a use now (rank 0) or
 * of a quarter of one (rank 1); where it is worth a place its read begins, after every demand.
 * Between steps. */
void expert_store_place(struct expert_store *s, const struct model_experts *home, int64_t e,
                        double rank);
/* Whether its bytes are in memory. */
bool expert_store_has(const struct model_experts *home, int64_t e);

bool expert_store_wants_guess(const struct expert_store *s);
void expert_store_early(struct expert_store *s, const struct model_experts *home,
                        const int32_t *ids, int64_t n);

#endif
