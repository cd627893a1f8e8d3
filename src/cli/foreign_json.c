/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign_json - an option of another engine whose value is a JSON object: each member is an option
 * here, a note or an error.
 */
#include "cli/cli.h"

#include "base/json.h"

#include <string.h>

/* Of a row: the option whose value has the member. */
static const struct cli_foreign table[] = {
#define FOREIGN(of, name, letters, kind, ours, note)
#define FOREIGN_MEMBER(parent, name, kind, ours, note)                                             \
    {parent, name, NULL, CLI_FOREIGN_##kind, ours, note},
#include "cli/foreign.inc"
#undef FOREIGN
#undef FOREIGN_MEMBER
};
enum { N_TABLE = sizeof table / sizeof *table, MOST_BYTES = 4096 };

static bool is_of(const struct cli_foreign *f, const char *parent)
{
    const size_t n = strlen(parent), k = strlen(f->of);
    return n >= k && strcmp(parent + n - k, f->of) == 0; /* vLLM puts "default-" in front */
}

static const struct cli_foreign *member(const char *parent, const char *name)
{
    for (size_t i = 0; i < N_TABLE; i++) {
        const size_t k = strlen(table[i].name);
        const bool begins = table[i].name[k - 1] == '*';
        if (is_of(&table[i], parent) &&
            (begins ? strncmp(name, table[i].name, k - 1) == 0 : strcmp(name, table[i].name) == 0))
            return &table[i];
    }
    return NULL;
}

static bool sets(const struct cli_foreign *f)
{
    return f->kind == CLI_FOREIGN_SAME || f->kind == CLI_FOREIGN_WORD ||
           f->kind == CLI_FOREIGN_SOME;
}

/* "method (--draft-method), ..." */
static void known(const char *parent, char *out, size_t n)
{
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < N_TABLE && at < n; i++)
        if (is_of(&table[i], parent) && sets(&table[i]))
            at += (size_t)snprintf(out + at, n - at, "%s%s (--%s)", at ? ", " : "", table[i].name,
                                   table[i].ours);
}

static ingle_status take(const struct cli_foreign *f, const char *name, struct json_object *value,
                         const char *command, struct ingle_config *config, struct cli_notes *notes,
                         struct err *err)
{
    const char *text = json_object_get_string(value);
    struct cli_setting set;
    struct ingle_error error;
    if (sets(f) && (json_object_is_type(value, json_type_object) ||
                    json_object_is_type(value, json_type_array) ||
                    (json_object_is_type(value, json_type_string) &&
                     strlen(text) != (size_t)json_object_get_string_len(value))))
        return err_set(err, INGLE_ARG, "'%s' is %.60s: it is --%s here, a text or a number",
                       f->name, text, f->ours);
    if (f->kind == CLI_FOREIGN_WORD && !cli_foreign_word(f, text, set.room, sizeof set.room))
        return err_set(err, INGLE_ARG, "'%s' is '%.40s': it is --%s here, and none of %s", f->name,
                       text, f->ours, f->note);
    const ingle_status st = cli_foreign_take(f, name, text, &set, notes, err);
    if (st || !set.name)
        return st;
    if (ingle_config_set(config, command, set.name, set.value, &error))
        return err_set(err, error.status, "'%s' is --%s here: %s", f->name, f->ours, error.text);
    return INGLE_OK;
}

static ingle_status take_all(const char *parent, struct json_object *o, const char *command,
                             struct ingle_config *config, struct cli_notes *notes, struct err *err)
{
    char what[360];
    ingle_status st = INGLE_OK;
    for (struct json_object_iterator i = json_object_iter_begin(o), end = json_object_iter_end(o);
         !st && !json_object_iter_equal(&i, &end); json_object_iter_next(&i)) {
        const char *name = json_object_iter_peek_name(&i);
        struct json_object *value = json_object_iter_peek_value(&i);
        const struct cli_foreign *f = member(parent, name);
        if (!f) {
            known(parent, what, sizeof what);
            st = err_set(err, INGLE_ARG, "nothing is called '%.60s' here; there is %s", name, what);
        } else if (value) { /* null: as if it were not there */
            st = take(f, name, value, command, config, notes, err);
        }
    }
    return st;
}

ingle_status cli_foreign_json(const char *parent, const char *text, const char *command,
                              struct ingle_config *config, struct cli_notes *notes, struct err *err)
{
    const struct json_limits limits = {.depth = 8, .n_values = 256, .n_bytes = MOST_BYTES};
    struct json_object *o = NULL;
    ingle_status st = json_parse(text, strlen(text), &limits, &o, err);
    if (!st && !json_object_is_type(o, json_type_object))
        st = err_set(err, INGLE_ARG, "it is a JSON object, not %.60s", text);
    if (!st)
        st = take_all(parent, o, command, config, notes, err);
    json_object_put(o);
    return st;
}

void cli_foreign_json_markdown(FILE *to)
{
    char what[360];
    const char *parent = "";
    for (size_t i = 0; i < N_TABLE; i++) {
        const struct cli_foreign *f = &table[i];
        if (strcmp(parent, f->of) != 0)
            fprintf(to, "\nMembers of `--%s`:\n\n| member | taken | here |\n|---|---|---|\n",
                    f->of);
        parent = f->of;
        cli_foreign_say(f, what, sizeof what);
        fprintf(to, "| `%s` | %s | %s |\n", f->name,
                sets(f)                        ? "yes"
                : f->kind == CLI_FOREIGN_TAKEN ? "with a note and its value"
                                               : "no",
                what);
    }
}
