/* SPDX-License-Identifier: Apache-2.0 */
/*
 * foreign_take - what an option of another engine is here: one of ours with a value, a note, or an
 * error.
 */
#include "cli/cli.h"

#include <string.h>
#include <strings.h>

bool cli_switch(const char *word)
{
    static const char *const words[] = {"on", "off", "auto", "true", "false", "1", "0", "yes", "no",
                                        "enabled", "disabled"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(words[i], word) == 0)
            return true;
    return false;
}

static bool is_off(const char *value)
{
    static const char *const off[] = {"off", "false", "0", "no", "disabled"};
    for (size_t i = 0; value && i < sizeof off / sizeof *off; i++)
        if (strcasecmp(off[i], value) == 0)
            return true;
    return false;
}

enum cli_values cli_foreign_values(const struct cli_foreign *f)
{
    switch (f->kind) {
    case CLI_FOREIGN_DONE:
    case CLI_FOREIGN_UNLESS:
    case CLI_FOREIGN_SETS:
        return CLI_NO_VALUE;
    case CLI_FOREIGN_MAYBE:
        return CLI_MAY_HAVE_VALUE;
    default:
        return CLI_HAS_VALUE;
    }
}

const char *cli_foreign_why(const struct cli_foreign *f)
{
    const char *bar = f->note ? strchr(f->note, '|') : NULL;
    return bar ? bar + 1 : f->note ? f->note : "";
}

/* ---- notes ---- */

/* "-ngl 99", not longer than a line. */
static void spell(char *out, size_t n, const char *spelt, const char *value)
{
    const bool cut = value && strlen(value) > 60;
    snprintf(out, n, "%.60s%s%.60s%s", spelt, value && *value ? " " : "", value ? value : "",
             cut ? "..." : "");
}

static bool has_name(const char *list, const char *name)
{
    const size_t k = strlen(name);
    for (const char *p = list; (p = strstr(p, name)); p += k)
        if ((p == list || p[-1] == ' ') && (!p[k] || p[k] == ','))
            return true;
    return false;
}

void cli_note_add(struct cli_notes *to, const char *spelt, const char *value, const char *why)
{
    char name[160];
    size_t i = 0;
    if (!to)
        return;
    spell(name, sizeof name, spelt, value);
    while (i < to->n && strcmp(to->at[i].why, why) != 0)
        i++;
    if (i < to->n && has_name(to->at[i].names, name))
        return;
    const size_t k = i < to->n ? strlen(to->at[i].names) : 0;
    if (i == CLI_NOTES || k + 2 + strlen(name) >= sizeof to->at[i].names) {
        to->n_more++;
        return;
    }
    snprintf(to->at[i].names + k, sizeof to->at[i].names - k, "%s%s", k ? ", " : "", name);
    to->at[i].why = why;
    to->n += i == to->n;
}

void cli_notes_print(const struct cli_notes *notes)
{
    for (size_t i = 0; i < notes->n; i++)
        cli_line("ingle: note: %s: %s", notes->at[i].names, notes->at[i].why);
    if (notes->n_more)
        cli_line("ingle: note: %zu more options of other engines have no effect here ('ingle help "
                 "others')",
                 notes->n_more);
}

/* ---- values ---- */

/* Whether the words of value, parted by semicolons or commas (of a list without blanks: its
 * letters), come in the order of the list. */
static bool in_order(const char *list, size_t n_list, const char *value)
{
    const char *at = list, *end = list + n_list;
    const bool letters = !memchr(list, ' ', n_list);
    for (const char *p = value; *p;) {
        const size_t k = letters ? 1 : strcspn(p, ";,");
        for (;; at += letters || at == end ? 0 : 1) {
            if (at >= end)
                return false;
            const char *blank = letters ? NULL : memchr(at, ' ', (size_t)(end - at));
            const size_t n = letters ? 1 : (size_t)((blank ? blank : end) - at);
            const bool same = n == k && strncasecmp(at, p, k) == 0;
            at += n;
            if (same)
                break;
        }
        p += k;
        p += strspn(p, letters ? "" : ";,");
    }
    return true;
}

static bool has_word(const char *list, size_t n_list, const char *word)
{
    const size_t k = strlen(word);
    for (const char *p = list; p < list + n_list;) {
        const char *blank = memchr(p, ' ', (size_t)(list + n_list - p));
        const size_t n = (size_t)((blank ? blank : list + n_list) - p);
        if (n == k && strncmp(p, word, k) == 0)
            return true;
        p += n + 1;
    }
    return false;
}

/* value: NULL or what it is refused for. */
static ingle_status refuse(const struct cli_foreign *f, const char *spelt, const char *value,
                           struct err *err)
{
    char what[360], name[160];
    cli_foreign_say(f, what, sizeof what);
    spell(name, sizeof name, spelt, value);
    return err_set(err, INGLE_ARG, "ingle has no %s: %s", name, what);
}

/* The words that the table has for the values of an option: what stands before '|'. */
static const char *words_of(const struct cli_foreign *f, size_t *n)
{
    const char *note = f->note ? f->note : "";
    *n = strcspn(note, "|");
    return note;
}

/* One of ours by its word for the value. */
static ingle_status word(const struct cli_foreign *f, const char *spelt, const char *value,
                         struct cli_setting *out, struct cli_notes *notes, struct err *err)
{
    const bool known = cli_foreign_word(f, value, out->room, sizeof out->room);
    size_t n_list;
    const char *list = words_of(f, &n_list);
    if (!known && f->kind == CLI_FOREIGN_WORD)
        return err_set(err, INGLE_ARG, "%.60s: '%.60s' is none of %.*s", spelt, value, (int)n_list,
                       list);
    if (!known || !out->room[0]) {
        cli_note_add(notes, spelt, value, cli_foreign_why(f));
        return INGLE_OK;
    }
    out->name = f->ours;
    out->value = out->room;
    return INGLE_OK;
}

/* What --gpu has for names of devices, parted by commas; false: there is none.  Of several each is
 * kept, so that --gpu says that they are too many. */
static bool card(const char *value, char *out, size_t n_out)
{
    static const struct { const char *name, *ours; bool numbered; } devices[] = {
        {"none", "off", false},
        {"cpu", "off", false},
        {"auto", "auto", false},
        {"cuda", "0", true}};
    size_t used = 0;
    for (const char *p = value;; p++) {
        const size_t k = strcspn(p, ","), n = strcspn(p, "0123456789:,"),
                     colon = p[n] == ':', digits = strspn(p + n + colon, "0123456789");
        size_t i = 0;
        while (i < sizeof devices / sizeof *devices &&
               (strlen(devices[i].name) != n || strncasecmp(devices[i].name, p, n) != 0))
            i++;
        if (i == sizeof devices / sizeof *devices || n + colon + digits != k || digits > 4 ||
            (colon && !digits) || (digits && !devices[i].numbered))
            return false;
        const char *text = digits ? p + n + colon : devices[i].ours;
        const int length = digits ? (int)digits : (int)strlen(text);
        const int more =
            snprintf(out + used, n_out - used, "%s%.*s", used ? "," : "", length, text);
        if (more < 0 || (size_t)more >= n_out - used)
            return false;
        used += (size_t)more;
        p += k;
        if (!*p)
            return true;
    }
}

ingle_status cli_foreign_take(const struct cli_foreign *f, const char *spelt, const char *value,
                              struct cli_setting *out, struct cli_notes *notes, struct err *err)
{
    size_t n_list;
    const char *list = words_of(f, &n_list);
    out->name = out->value = NULL;
    switch (f->kind) {
    case CLI_FOREIGN_LAUNCH:
        return err_set(err, INGLE_ARG, "%.60s: it is read on the command line only", spelt);
    case CLI_FOREIGN_SAME:
    case CLI_FOREIGN_JSON:
        out->name = f->ours;
        out->value = value;
        return INGLE_OK;
    case CLI_FOREIGN_HUB:
        if (snprintf(out->room, sizeof out->room, "hf:%s", value) >= (int)sizeof out->room)
            return err_set(err, INGLE_ARG, "%.60s: a name has at most %d bytes", spelt,
                           (int)sizeof out->room - 4);
        out->name = f->ours;
        out->value = out->room;
        return INGLE_OK;
    case CLI_FOREIGN_MIB:
        if (!*value || strspn(value, "0123456789") != strlen(value) || strlen(value) > 12) {
            cli_note_add(notes, spelt, value, cli_foreign_why(f));
            return INGLE_OK;
        }
        snprintf(out->room, sizeof out->room, "%sM", value);
        out->name = f->ours;
        out->value = out->room;
        return INGLE_OK;
    case CLI_FOREIGN_MOST:
        snprintf(out->room, sizeof out->room, "%s",
                 *value == '-' && value[1] >= '0' && value[1] <= '9' ? "all" : value);
        if (*value >= '0' && *value <= '9' && strspn(value, "0123456789") == strlen(value) &&
            strlen(value) < 12)
            snprintf(out->room, sizeof out->room, "%s+", value);
        out->name = f->ours;
        out->value = out->room;
        return INGLE_OK;
    case CLI_FOREIGN_CARD:
        if (!card(value, out->room, sizeof out->room)) {
            cli_note_add(notes, spelt, value, cli_foreign_why(f));
            return INGLE_OK;
        }
        out->name = f->ours;
        out->value = out->room;
        return INGLE_OK;
    case CLI_FOREIGN_PART:
        if (snprintf(out->room, sizeof out->room, "%.*s=%s", (int)n_list, list, value) >=
            (int)sizeof out->room)
            return err_set(err, INGLE_ARG, "%.60s: '%.60s...' is too long", spelt, value);
        out->name = f->ours;
        out->value = out->room;
        cli_note_add(notes, spelt, value, cli_foreign_why(f));
        return INGLE_OK;
    case CLI_FOREIGN_WORD:
    case CLI_FOREIGN_SOME:
        return word(f, spelt, value, out, notes, err);
    case CLI_FOREIGN_SETS:
        if (value && *value && !cli_switch(value))
            return err_set(err, INGLE_ARG, "%.60s is on or off, not '%.60s'", spelt, value);
        if (is_off(value))
            return INGLE_OK;
        snprintf(out->room, sizeof out->room, "%.*s", (int)n_list, list);
        out->name = f->ours;
        out->value = out->room;
        if (list[n_list])
            cli_note_add(notes, spelt, value, cli_foreign_why(f));
        return INGLE_OK;
    case CLI_FOREIGN_UNLESS:
        if (is_off(value))
            out->name = f->ours;
        else
            cli_note_add(notes, spelt, value, cli_foreign_why(f));
        return INGLE_OK;
    case CLI_FOREIGN_ONLY:
    case CLI_FOREIGN_ORDER:
        if (f->kind == CLI_FOREIGN_ONLY ? !has_word(list, n_list, value)
                                        : !in_order(list, n_list, value))
            return refuse(f, spelt, value, err);
        break;
    case CLI_FOREIGN_DONE:
    case CLI_FOREIGN_MAYBE:
    case CLI_FOREIGN_TAKEN:
        break;
    case CLI_FOREIGN_HAS:
    case CLI_FOREIGN_NONE:
        return refuse(f, spelt, NULL, err);
    }
    cli_note_add(notes, spelt, value, cli_foreign_why(f));
    return INGLE_OK;
}
