/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/would.h"

#include "device/device.h"
#include "family/family.h"
#include "tower/tower.h"
#include <string.h>

/* A projector file: all its names and shapes. */
static ingle_status tower_would_load(struct io_file *file, struct err *err)
{
    struct device *d = NULL;
    struct tower *t = NULL;
    ingle_status st =
        device_create(&d, &(struct device_options){.n_threads = 1, .cpu = UINT32_MAX}, err);
    if (!st)
        st = tower_open_file(&t, file, &(struct tower_options){.device = d, .check = true}, err);
    tower_close(t);
    device_free(d);
    return st;
}

ingle_status tool_would_load(struct io_file *file, bool *known, struct err *err)
{
    const struct io_meta *meta = io_metadata(file);
    const char *arch = NULL;
    char name[64];
    size_t n = 0;
    struct device *d = NULL;
    struct model *m = NULL;
    struct family_info info;
    void *self = NULL;
    *known = false;
    if (io_get_str(meta, "general.architecture", &arch, &n, NULL) || n >= sizeof name)
        return INGLE_OK;
    memcpy(name, arch, n);
    name[n] = 0;
    if (!strcmp(name, "clip")) {
        *known = true;
        return tower_would_load(file, err);
    }
    const struct family *f = family_by_arch(name);
    if (!f)
        return INGLE_OK;
    ingle_status st =
        device_create(&d, &(struct device_options){.n_threads = 1, .cpu = UINT32_MAX}, err);
    if (!st)
        st = model_create(&m, file, d, f->alias, NULL, err);
    /* Drafters of a family have its name and no layer of a model; a vocabulary has no tensors. */
    *known = !st && io_n_tensors(file) &&
             (model_find(m, "blk.0.attn_norm.weight") || !family_draft_of(f, m, meta, NULL));
    if (*known)
        st = f->bind(&self, m, meta, &info, err);
    if (*known && !st)
        st = model_check_unused(m, err);
    f->free(self);
    model_free(m);
    device_free(d);
    return st;
}
