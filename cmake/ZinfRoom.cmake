# zinf_room(NAME SOURCES ... LINKS ...): one static library per folder; includes are from the repository root.
function(zinf_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  add_library(zinf_${name} STATIC ${ARG_SOURCES})
  target_include_directories(zinf_${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(zinf_${name} PUBLIC Threads::Threads ${ARG_LINKS} PRIVATE ${ARG_PRIVATE_LINKS})
endfunction()

# zinf_precompile(TARGET HEADER [EXCEPT SOURCES...]): reads a header once that costs most of the target's sources seconds.
function(zinf_precompile target header)
  cmake_parse_arguments(ARG "" "" "EXCEPT" ${ARGN})
  target_precompile_headers(${target} PRIVATE ${header})
  set_source_files_properties(${ARG_EXCEPT} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${target} PRIVATE -fpch-preprocess)  # for ccache
  endif()
endfunction()

# zinf_test(NAME SOURCES ... LINKS ... [LABELS ...]): one GoogleTest program, one ctest entry.
function(zinf_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS;LABELS;ARGS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} GTest::gtest GTest::gtest_main)
  target_precompile_headers(${name} REUSE_FROM zinf_test_header)
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  if(ARG_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}")
  endif()
endfunction()
