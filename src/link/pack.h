/* pack - MessagePack, as far as events need it, appended to memory. */
#ifndef INGLE_LINK_PACK_H
#define INGLE_LINK_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct link_pack {
    uint8_t *at; /* [n] owned */
    size_t n, cap;
    bool failed; /* memory ran out */
};
void link_pack_release(struct link_pack *p);
void link_pack_nil(struct link_pack *p);
void link_pack_uint(struct link_pack *p, uint64_t v);
void link_pack_double(struct link_pack *p, double v);
void link_pack_text(struct link_pack *p, const char *text); /* below 64 KiB */
/* So many values, or pairs of a key and a value, follow. */
void link_pack_array(struct link_pack *p, size_t n);
void link_pack_map(struct link_pack *p, size_t n); /* below 16 */

#endif
