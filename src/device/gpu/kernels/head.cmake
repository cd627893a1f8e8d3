# The two lines at the top of PTX that say what it is for: head.cmake with PTX and SM.  A newer clang writes a newer
# version, which old drivers refuse; every operation that the kernels have is in 7.5.
file(READ ${PTX} text)
string(REGEX REPLACE "\n\\.version [0-9.]+" "\n.version 7.5" text "${text}")
string(REGEX REPLACE "\n\\.target sm_[0-9a-z]+" "\n.target sm_${SM}" text "${text}")
file(WRITE ${PTX} "${text}")
