/*
 * tool_schema - the schema of a tool's parameters in the words that a family's template shows.
 *
 * Libraries write X | null, $ref, enums without a type and lists of types, of which Gemma 4's
 * template shows an empty type.  What a template shows in full stays as it is.
 */
#ifndef INGLE_TEXT_TOOL_SCHEMA_H
#define INGLE_TEXT_TOOL_SCHEMA_H

#include "text/template.h"

/* The caller ends what is returned with json_object_put(); NULL: failed, or there was none.
 *
 * plain: for a template that knows type, description, enum, items, properties, required and
 * nullable alone.  $ref (into the schema itself) is put in; allOf is one schema; of anyOf and oneOf
 * null becomes nullable, one branch that is left stands for all, several are united as far as they
 * are alike; const is an enum; a missing type follows from values, properties or items.  Not plain:
 * only $ref, and "$defs" with it, if nothing refers to itself.
 * Each target is shaped once; after a bound of parts, and where a schema holds itself, stands its
 * type alone. */
struct json_object *text_tool_schema(struct text_writer *w, struct json_object *schema, bool plain);

#endif
