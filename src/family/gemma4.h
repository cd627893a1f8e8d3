/* gemma4 - inside the room: the Hugging Face side of the family. */
#ifndef INGLE_FAMILY_GEMMA4_H
#define INGLE_FAMILY_GEMMA4_H

#include "family/family.h"

ingle_status family_gemma4_config(struct json_object *config, struct io_meta *out,
                                     const struct report_sink *sink, struct err *err);
bool family_gemma4_rename(const char *name, char *out, size_t n_out);
bool family_gemma4_hf_name(const char *name, char *out, size_t n_out);
ingle_status family_gemma4_to_config(const struct io_file *file, struct json_object *out,
                                     struct err *err);
struct family_back;
double family_gemma4_turning_share(struct family_back *b);

#endif
