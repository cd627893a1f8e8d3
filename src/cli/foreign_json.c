/* SPDX-License-Identifier: Apache-2.0 */
/* foreign_json - an option of another engine whose value is a JSON object: each member is an option here, or says what is. */
#include "cli/cli.h"

#include "base/json.h"

#include <string.h>

static const struct cli_foreign table[] = {
#define FOREIGN(of, name, letters, kind, ours, note)
#define FOREIGN_MEMBER(name, kind, ours, note) {"vllm", name, NULL, CLI_FOREIGN_##kind, ours, note},
#include "cli/foreign.inc"
#undef FOREIGN
#undef FOREIGN_MEMBER
};
enum { N_TABLE = sizeof table / sizeof *table, MOST_BYTES = 4096 };

static const struct cli_foreign *member(const char *name)
{
    for (size_t i = 0; i < N_TABLE; i++) {
        const size_t k = strlen(table[i].name);
        const bool begins = table[i].name[k - 1] == '*';
        if (begins ? strncmp(name, table[i].name, k - 1) == 0 : strcmp(name, table[i].name) == 0)
            return &table[i];
    }
    return NULL;
}

/* "method (--draft-method), ..." */
static void known(char *out, size_t n)
{
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < N_TABLE && at < n; i++)
        if (table[i].kind == CLI_FOREIGN_SAME || table[i].kind == CLI_FOREIGN_WORD)
            at += (size_t)snprintf(out + at, n - at, "%s%s (--%s)", at ? ", " : "", table[i].name, table[i].ours);
}

static ingle_status take(const struct cli_foreign *f, struct json_object *value, const char *command, struct ingle_config *config,
                         struct err *err)
{
    char word[32];
    const char *text = json_object_get_string(value);
    struct ingle_error error;
    if (json_object_is_type(value, json_type_object) || json_object_is_type(value, json_type_array) ||
        (json_object_is_type(value, json_type_string) && strlen(text) != (size_t)json_object_get_string_len(value)))
        return err_set(err, INGLE_ARG, "'%s' is %.60s: it is --%s here, a text or a number", f->name, text, f->ours);
    if (f->kind == CLI_FOREIGN_WORD && !cli_foreign_word(f, text, word, sizeof word))
        return err_set(err, INGLE_ARG, "'%s' is '%.40s': it is --%s here, and none of %s", f->name, text, f->ours, f->note);
    if (ingle_config_set(config, command, f->ours, f->kind == CLI_FOREIGN_WORD ? word : text, &error))
        return err_set(err, error.status, "'%s' is --%s here: %s", f->name, f->ours, error.text);
    return INGLE_OK;
}

static ingle_status take_all(struct json_object *o, const char *command, struct ingle_config *config, const struct cli_foreign **taken,
                             struct err *err)
{
    char what[360];
    ingle_status st = INGLE_OK;
    for (struct json_object_iterator i = json_object_iter_begin(o), end = json_object_iter_end(o);
         !st && !json_object_iter_equal(&i, &end); json_object_iter_next(&i)) {
        const char *name = json_object_iter_peek_name(&i);
        struct json_object *value = json_object_iter_peek_value(&i);
        const struct cli_foreign *f = member(name);
        if (!f) {
            known(what, sizeof what);
            st = err_set(err, INGLE_ARG, "nothing is called '%.60s' here; there is %s", name, what);
        } else if (!value) {
            continue; /* null: as if it were not there */
        } else if (f->kind == CLI_FOREIGN_TAKEN) {
            *taken = *taken ? *taken : f;
        } else if (f->kind == CLI_FOREIGN_SAME || f->kind == CLI_FOREIGN_WORD) {
            st = take(f, value, command, config, err);
        } else {
            cli_foreign_say(f, what, sizeof what);
            st = err_set(err, INGLE_ARG, "ingle has no '%s': %s", name, what);
        }
    }
    return st;
}

ingle_status cli_foreign_json(const char *text, const char *command, struct ingle_config *config, const struct cli_foreign **taken,
                              struct err *err)
{
    const struct json_limits limits = {.depth = 8, .n_values = 256, .n_bytes = MOST_BYTES};
    struct json_object *o = NULL;
    ingle_status st = json_parse(text, strlen(text), &limits, &o, err);
    if (!st && !json_object_is_type(o, json_type_object))
        st = err_set(err, INGLE_ARG, "it is a JSON object, not %.60s", text);
    if (!st)
        st = take_all(o, command, config, taken, err);
    json_object_put(o);
    return st;
}

void cli_foreign_json_markdown(FILE *to)
{
    char what[360];
    fputs("\nMembers of `--speculative-config`:\n\n| member | taken | here |\n|---|---|---|\n", to);
    for (size_t i = 0; i < N_TABLE; i++) {
        const struct cli_foreign *f = &table[i];
        const bool is_ours = f->kind == CLI_FOREIGN_SAME || f->kind == CLI_FOREIGN_WORD;
        cli_foreign_say(f, what, sizeof what);
        fprintf(to, "| `%s` | %s | %s |\n", f->name, is_ours ? "yes" : f->kind == CLI_FOREIGN_TAKEN ? "with a note and its value" : "no", what);
    }
}
