/* SPDX-License-Identifier: Apache-2.0 */
/* replay - a main for the targets of tests/fuzz: each seed of a folder as it is, and mutations of
 * them that are the same in each run.  usage: fuzz_NAME FOLDER COUNT.  libFuzzer finds new inputs
 * (./test soak); this keeps what is known. */
#define _GNU_SOURCE
#include "kerncheck/checks.h"
#include <dirent.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

enum { MOST_SEEDS = 512, MOST_BYTES = 1 << 16 };

static struct seed {
    uint8_t *at;
    size_t n;
} seed[MOST_SEEDS];
static int n_seeds;

static void read_seed(const char *folder, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    struct seed *s = &seed[n_seeds];
    if (!f || n_seeds == MOST_SEEDS || !(s->at = malloc(MOST_BYTES)))
        abort();
    s->n = fread(s->at, 1, MOST_BYTES, f);
    fclose(f);
    n_seeds++;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_file(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* One change of n bytes at `to`, which has room for MOST_BYTES; the new length. */
static size_t mutate(struct noise *r, uint8_t *to, size_t n)
{
    const size_t at = (size_t)noise_below(r, (int64_t)n + 1), m = 1 + (size_t)noise_below(r, 16);
    const struct seed *other = &seed[noise_below(r, n_seeds)];
    static const uint8_t odd[] = {0,   1,   0x7f, 0x80, 0xff, '"',  '\\', '{',
                                  '[', ']', '}',  ',',  ':',  '\n', '-',  '9'};
    switch (noise_below(r, 6)) {
    case 0: /* a bit */
        if (at < n)
            to[at] ^= (uint8_t)(1u << noise_below(r, 8));
        return n;
    case 1: /* a byte */
        if (at < n)
            to[at] = odd[noise_below(r, sizeof odd)];
        return n;
    case 2: /* the end is cut off */
        return at;
    case 3: /* bytes are left out */
        if (at + m > n)
            return at;
        memmove(to + at, to + at + m, n - at - m);
        return n - m;
    case 4: /* bytes come twice */
        if (at + m > n || n + m > MOST_BYTES)
            return n;
        memmove(to + at + m, to + at, n - at);
        return n + m;
    default: { /* the end of another seed */
        const size_t from = (size_t)noise_below(r, (int64_t)other->n + 1), more = other->n - from;
        if (at + more > MOST_BYTES)
            return n;
        if (more)
            memcpy(to + at, other->at + from, more);
        return at + more;
    }
    }
}

/* In memory of its exact size, so that a sanitizer sees a read past its end. */
static void try_one(const uint8_t *at, size_t n)
{
    uint8_t *exact = malloc(n ? n : 1);
    if (!exact)
        abort();
    if (n)
        memcpy(exact, at, n);
    (void)LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    struct dirent **entry;
    const int n = scandir(argv[1], &entry, is_file, by_name);
    for (int i = 0; i < n; i++) {
        read_seed(argv[1], entry[i]->d_name);
        free(entry[i]);
    }
    if (n <= 0)
        return 2;
    free(entry);
    for (int i = 0; i < n_seeds; i++)
        try_one(seed[i].at, seed[i].n);
    static uint8_t copy[MOST_BYTES];
    struct noise r = {1};
    for (int i = 0; i < atoi(argv[2]); i++) {
        const struct seed *s = &seed[i % n_seeds];
        size_t m = s->n;
        memcpy(copy, s->at, m);
        for (int64_t k = 1 + noise_below(&r, 4); k > 0; k--)
            m = mutate(&r, copy, m);
        try_one(copy, m);
    }
    for (int i = 0; i < n_seeds; i++)
        free(seed[i].at);
    printf("%d seeds, %s mutations\n", n_seeds, argv[2]);
    return 0;
}
