# Write a C++ file that holds a text: cmake -DINPUT=a.json -DOUTPUT=a.cc -P embed_text.cmake
file(READ "${INPUT}" text)
file(WRITE "${OUTPUT}" "#include \"server/api/openapi.h\"

namespace centroid::server {

std::string_view openapi_document() {
  static constexpr std::string_view kText = R\"openapi(${text})openapi\";
  return kText;
}

}  // namespace centroid::server
")
