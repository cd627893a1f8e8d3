/* SPDX-License-Identifier: Apache-2.0 */
/* eagle3 - drafters that are recognised and refused: EAGLE-3 has published files for Gemma 4, and
 * ingle has others that accept more. */
#include "family/draft/drafts.h"

#include "family/hf/config.h"
#include <string.h>

static ingle_status refuse(const char *path, const char *field, const char *value, struct err *err)
{
    return err_set(err, INGLE_UNSUP,
                   "'%s': '%s' is '%.60s', an EAGLE-3 drafter, which this version does not have: "
                   "what fits Gemma 4 is a DSpark, "
                   "DFlash or MTP drafter (Gemma4DSparkModel, DFlashDraftModel, gemma4_assistant)",
                   path, field, value);
}

static bool is_eagle(const char *s, size_t n)
{
    return n >= 6 && (!strncmp(s, "eagle", 5) || !strncmp(s, "Eagle", 5) || strstr(s, "Eagle3") ||
                      strstr(s, "EAGLE3"));
}

static const char *named_by(struct json_object *config)
{
    struct json_object *list = family_config_get(config, "architectures"),
                       *type = family_config_get(config, "speculators_model_type");
    const char *s = type ? json_object_get_string(type) : NULL;
    if (s && is_eagle(s, strlen(s)))
        return s;
    s = json_object_is_type(list, json_type_array) && json_object_array_length(list)
            ? json_object_get_string(json_object_array_get_idx(list, 0))
            : NULL;
    return s && is_eagle(s, strlen(s)) ? s : NULL;
}

static bool eagle3_named(struct json_object *config)
{
    return named_by(config) != NULL;
}

static ingle_status eagle3_config(struct json_object *config, struct io_meta *out,
                                  const struct report_sink *sink, struct err *err)
{
    const char *s = named_by(config);
    (void)out;
    (void)sink;
    return refuse("config.json", "architectures", s ? s : "", err);
}

static bool eagle3_fits(const struct family *target, const struct model *m,
                        const struct io_meta *meta)
{
    const struct io_value *v = io_meta_find(meta, "general.architecture");
    (void)target;
    (void)m;
    return v && v->kind == IO_STR && is_eagle(v->v.s, v->n);
}

static ingle_status eagle3_bind(void **self, const struct family_draft_target *target,
                                struct model *m, const struct io_meta *meta,
                                struct family_draft_info *info, struct err *err)
{
    const struct io_value *v = io_meta_find(meta, "general.architecture");
    (void)self;
    (void)target;
    (void)info;
    return refuse(io_path(model_file(m)), "general.architecture",
                  v && v->kind == IO_STR ? v->v.s : "", err);
}

const struct family_draft family_eagle3 = {.kind = "eagle3",
                                           .named = eagle3_named,
                                           .config = eagle3_config,
                                           .fits = eagle3_fits,
                                           .bind = eagle3_bind};
