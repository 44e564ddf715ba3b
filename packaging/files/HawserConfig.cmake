# find_package(Hawser) offers Hawser::nccl, the library with NCCL's interface and hawser.h.
get_filename_component(_hawser_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET Hawser::nccl)
  add_library(Hawser::nccl SHARED IMPORTED)
  set_target_properties(Hawser::nccl PROPERTIES
    IMPORTED_LOCATION "${_hawser_prefix}/lib/libnccl.so.2"
    IMPORTED_SONAME "libnccl.so.2"
    INTERFACE_INCLUDE_DIRECTORIES "${_hawser_prefix}/include")
endif()
unset(_hawser_prefix)
