/* SPDX-License-Identifier: Apache-2.0
 * The web page in read-only memory.  PAGE_FILE comes from the build. */
    .section .rodata
    .globl page_html
    .hidden page_html
    .type page_html, %object
page_html:
    .incbin PAGE_FILE
    .size page_html, . - page_html
    .globl page_html_end
    .hidden page_html_end
    .type page_html_end, %object
page_html_end:
    .byte 0
    .size page_html_end, 1
    .section .note.GNU-stack, "", %progbits
