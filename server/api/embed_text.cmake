# Write a C++ file with a function that returns a text:
#   cmake -DINPUT=a.json -DOUTPUT=a.cc -DHEADER=server/api/a.h -DFUNCTION=a_document -P embed_text.cmake
file(READ "${INPUT}" text)
file(WRITE "${OUTPUT}" "#include \"${HEADER}\"

namespace centroid::server {

std::string_view ${FUNCTION}() {
  static constexpr std::string_view kText = R\"embedded(${text})embedded\";
  return kText;
}

}  // namespace centroid::server
")
