# The web page: its sources, and the libraries of the distribution that it shows answers with.  Sets page_sources,
# what the room server is made of besides its own files.
#
# Each library is optional.  Without markdown-it or DOMPurify answers are shown as paragraphs and code; build.js tells
# the page what is there.
find_program(GZIP gzip REQUIRED)
set(page_dir ${CMAKE_BINARY_DIR}/page)
set(page_list "")
set(page_depends "")
function(page_add path name)
  set(page_list "${page_list}${path}|${name}\n" PARENT_SCOPE)
  set(page_depends ${page_depends} "${path}" PARENT_SCOPE)
endfunction()

foreach(name index.html ${INGLE_PAGE})
  page_add(${CMAKE_SOURCE_DIR}/src/server/page/${name} ${name})
endforeach()

set(page_js "")
set(page_missing "")
# page_library(WORD PACKAGE NAME PATH...): /page/NAME is the first PATH that is there.
function(page_library word package name)
  set(found "")
  foreach(path IN LISTS ARGN)
    if(INGLE_PAGE_LIBRARIES AND NOT found AND EXISTS ${path})
      set(found ${path})
    endif()
  endforeach()
  if(found)
    page_add(${found} ${name})
    set(page_list "${page_list}" PARENT_SCOPE)
    set(page_depends ${page_depends} PARENT_SCOPE)
    set(page_js "${page_js}  ${word}: true,\n" PARENT_SCOPE)
  else()
    set(page_js "${page_js}  ${word}: false,\n" PARENT_SCOPE)
    set(page_missing ${page_missing} ${package} PARENT_SCOPE)
  endif()
endfunction()
option(INGLE_PAGE_LIBRARIES "Markdown, formulas, colours of code and PDF in the web page" ON)
set(share /usr/share)
page_library(markdown libjs-markdown-it markdown-it.js ${share}/javascript/markdown-it/markdown-it.min.js
  ${share}/javascript/markdown-it/markdown-it.js)
page_library(purify node-dompurify purify.js ${share}/nodejs/dompurify/dist/purify.min.js
  ${share}/javascript/dompurify/purify.min.js)
page_library(highlight libjs-highlight.js highlight.js ${share}/javascript/highlight.js/highlight.min.js)
set(katex ${share}/javascript/katex/katex.css)
file(GLOB katex_fonts ${share}/fonts/truetype/katex/KaTeX_*.woff2)
if(EXISTS ${share}/javascript/katex/katex.min.css AND katex_fonts)
  page_library(katex libjs-katex katex.js ${share}/javascript/katex/katex.js)
else()
  page_library(katex "libjs-katex and fonts-katex" katex.js)
endif()
if(page_js MATCHES "katex: true")
  page_add(${share}/javascript/katex/katex.min.css katex.css)
  foreach(font IN LISTS katex_fonts)
    get_filename_component(name ${font} NAME)
    page_add(${font} fonts/${name})
  endforeach()
endif()
if(EXISTS ${share}/javascript/pdf/build/pdf.worker.js)
  page_library(pdf libjs-pdf pdf.js ${share}/javascript/pdf/build/pdf.js)
else()
  page_library(pdf libjs-pdf pdf.js)
endif()
if(page_js MATCHES "pdf: true")
  page_add(${share}/javascript/pdf/build/pdf.worker.js pdf.worker.js)
endif()
if(page_missing)
  string(REPLACE ";" ", " page_missing "${page_missing}")
  message(STATUS "The web page is built without: ${page_missing}")
endif()
file(GENERATE OUTPUT ${page_dir}/build.js CONTENT "// Written by the build.
export const libraries = {
${page_js}};
export const missing = '${page_missing}';
")
page_add(${page_dir}/build.js build.js)
file(GENERATE OUTPUT ${page_dir}/list.txt CONTENT "${page_list}")

add_custom_command(OUTPUT ${page_dir}/page_files.S ${page_dir}/server/page_files.inc
  DEPENDS ${page_depends} ${page_dir}/list.txt ${CMAKE_SOURCE_DIR}/scripts/pack_page.cmake VERBATIM
  COMMAND ${CMAKE_COMMAND} -DOUT=${page_dir} -DGZIP=${GZIP} -DLIST=${page_dir}/list.txt
          -P ${CMAKE_SOURCE_DIR}/scripts/pack_page.cmake)
set(page_sources ${page_dir}/page_files.S)
