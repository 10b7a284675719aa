# Turns files into a C++ source: cmake -DOUTPUT=... -DFILES="a;b" -P embed_files.cmake
# What it defines is declared in src/server/web_page.h.

set(arrays "")
set(table "")
set(index 0)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  file(READ ${file} hex HEX)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 16 hash)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  string(APPEND arrays "constexpr char kFile${index}[] = {${bytes}'\\0'};\n")
  string(APPEND table "    {\"${name}\", {kFile${index}, sizeof kFile${index} - 1}, \"\\\"${hash}\\\"\"},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Written by cmake/embed_files.cmake.\n#include \"server/web_page.h\"\n
namespace palimpsest::server {
namespace {\n
${arrays}
constexpr WebFile kFiles[] = {\n${table}};\n
}  // namespace\n
std::span<const WebFile> web_files() {
  return kFiles;
}\n
}  // namespace palimpsest::server\n")
