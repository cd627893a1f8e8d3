# Read by cpack before it makes a package: what is missing is named at once, and no package without dependencies is made.
if(CPACK_GENERATOR STREQUAL "DEB" AND CPACK_DEBIAN_PACKAGE_SHLIBDEPS)
  find_program(INGLE_SHLIBDEPS dpkg-shlibdeps NO_CACHE)
  find_program(INGLE_FILE file NO_CACHE)
  if(NOT INGLE_SHLIBDEPS OR NOT INGLE_FILE)
    message(FATAL_ERROR "a Debian package needs the programs dpkg-shlibdeps and file, which find its dependencies: apt install dpkg-dev file")
  endif()
endif()
