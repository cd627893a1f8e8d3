/* SPDX-License-Identifier: Apache-2.0 */
/* Directories of packed weights, for callers. */
#include "engine/engine.h"

struct pack_listing {
    ingle_pack_fn *fn;
    void *arg;
};

static void pass_pack(void *arg, const struct model_pack_entry *e)
{
    const struct pack_listing *l = arg;
    const struct ingle_pack_entry out = {.name = e->name,
                                         .model = e->model,
                                         .bytes = e->bytes,
                                         .age_seconds = e->age_s,
                                         .in_use = e->in_use,
                                         .foreign = e->foreign,
                                         .temporary = e->temporary,
                                         .damage = e->damage};
    l->fn(l->arg, &out);
}

ingle_status ingle_pack_list(const char *dir, bool verify, ingle_pack_fn *fn, void *arg,
                             struct ingle_error *error)
{
    struct err err;
    struct pack_listing l = {fn, arg};
    return engine_say(error, model_pack_list(dir, verify, pass_pack, &l, &err), &err);
}

ingle_status ingle_pack_clear(const char *dir, int64_t *n_files, uint64_t *n_bytes,
                              struct ingle_error *error)
{
    struct err err;
    return engine_say(error, model_pack_clear(dir, n_files, n_bytes, &err), &err);
}
