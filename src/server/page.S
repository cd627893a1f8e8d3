/* SPDX-License-Identifier: Apache-2.0
 * The description of the endpoints in read-only memory.  The name of the file comes from the
 * build, which writes the same for the web page (scripts/pack_page.cmake). */
    .section .rodata
    .globl page_openapi
    .hidden page_openapi
    .type page_openapi, %object
page_openapi:
    .incbin OPENAPI_FILE
    .size page_openapi, . - page_openapi
    .globl page_openapi_end
    .hidden page_openapi_end
    .type page_openapi_end, %object
page_openapi_end:
    .byte 0
    .size page_openapi_end, 1
    .section .note.GNU-stack, "", %progbits
