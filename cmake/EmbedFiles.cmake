# Writes a C++ source with the text of files in it:
#   cmake -DOUTPUT=x.cpp -DHEADER=x.h -DNAMESPACE=n -DASSETS="kName=file;..." -P EmbedFiles.cmake
# The header declares each as `extern const std::string_view`.
set(source "// Made by cmake/EmbedFiles.cmake.\n#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n\n")
foreach(asset IN LISTS ASSETS)
  string(REGEX MATCH "^([^=]*)=(.*)$" matched "${asset}")
  set(name "${CMAKE_MATCH_1}")
  set(file "${CMAKE_MATCH_2}")
  file(READ "${file}" text)
  string(FIND "${text}" "</script" script_end)
  string(FIND "${text}" ")embedded\"" literal_end)
  if((file MATCHES "\\.js$" AND NOT script_end EQUAL -1) OR NOT literal_end EQUAL -1)
    message(FATAL_ERROR "${file} cannot be embedded: it has the end of a script element or of a literal in it")
  endif()
  string(APPEND source "const std::string_view ${name} = R\"embedded(${text})embedded\";\n\n")
endforeach()
file(WRITE "${OUTPUT}" "${source}}  // namespace ${NAMESPACE}\n")
