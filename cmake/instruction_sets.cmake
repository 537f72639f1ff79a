# A file named *_avx2.cc, *_avx512.cc or *_avx512bf16.cc is compiled for that instruction set; which
# one runs is chosen at start (src/cpu). Nothing else may use wider instructions than the baseline.
foreach(room cpu)
  file(GLOB_RECURSE wide CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${room}/*.cc)
  foreach(source ${wide})
    if(source MATCHES "_avx2\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mf16c")
    elseif(source MATCHES "_avx512\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "-O3;-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl")
    elseif(source MATCHES "_avx512bf16\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "-O3;-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16")
    endif()
  endforeach()
endforeach()
