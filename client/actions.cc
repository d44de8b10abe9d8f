#include <cstdio>

#include "client/online.h"

/// What changes something: workers drain, checkpoints make, job ...; and probe.
namespace centroid::client {

namespace {

int act(const Session& session, const std::string& path, const std::string& said) {
  const auto answer = post_json(session, path);
  if (!answer.ok()) return complain(answer.error());
  std::printf("%s\n", session.style.is_json ? answer->dump().c_str() : said.c_str());
  return kExitDone;
}

/// Member number of a worker by its name, or the number itself; of several with a name the newest.
Result<std::string> member_of(const Session& session, const std::string& worker) {
  CENTROID_ASSIGN(const Json answer, get_json(session, "/v1/workers"));
  std::string found;
  for (const Json& one : answer["workers"])
    if (text_of(one, "name") == worker || text_of(one, "member") == worker)
      if (found.empty() || std::stoull(text_of(one, "member")) > std::stoull(found))
        found = text_of(one, "member");
  if (found.empty())
    return Error(ErrorCode::kNotFound, "no worker has the name or member number '" + worker + "'");
  return found;
}

int drain(const Session& session, const std::string& worker) {
  const auto member = member_of(session, worker);
  if (!member.ok()) return complain(member.error());
  return act(session, "/v1/workers/" + *member + ":drain",
             worker + " finishes its round and leaves");
}

int make_checkpoint(Session session) {
  session.remote.timeout = std::max(session.remote.timeout, std::chrono::milliseconds(310'000));
  const auto answer = post_json(session, "/v1/checkpoints");
  if (!answer.ok()) return complain(answer.error());
  if (session.style.is_json)
    std::printf("%s\n", answer->dump().c_str());
  else
    std::printf("%s\nversion %s, %s\n", text_of(*answer, "path").c_str(),
                text_of(*answer, "version").c_str(),
                size_text(number_of(*answer, "bytes")).c_str());
  return kExitDone;
}

int probe(const Session& session, const std::string& url) {
  Remote remote = session.remote;
  const auto path = remote.set_address(url);
  if (!path.ok()) return complain(path.error());
  const auto answer = ask(remote, "GET", path->empty() ? "/" : *path);
  if (!answer.ok()) return complain(answer.error());
  if (answer->is_good()) return kExitDone;
  std::fprintf(stderr, "centroidctl: %s: %s\n", url.c_str(), explain(*answer).c_str());
  return kExitFailed;
}

}  // namespace

void add_actions(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  CLI::App* const drained = app.get_subcommand("workers")->add_subcommand(
      "drain", "Let a worker finish its round and leave.");
  const auto worker = std::make_shared<std::string>();
  drained->add_option("WORKER", *worker, "its name or member number")->required();
  drained->callback([=, &status] { status = drain(*session, *worker); });

  CLI::App* const make = app.get_subcommand("checkpoints")
                             ->add_subcommand("make", "Have the server write one now, and wait.");
  make->callback([=, &status] { status = make_checkpoint(*session); });

  CLI::App* const job = app.add_subcommand("job", "Steers the job.");
  job->require_subcommand(1);
  const auto verb = [&](const char* name, const char* what, const char* said) {
    CLI::App* const one = job->add_subcommand(name, what);
    one->callback([session, &status, name, said] {
      status = act(*session, std::string("/v1/job:") + name, said);
    });
  };
  verb("pause", "Open no new round.", "pauses after the open round; `job resume` goes on");
  verb("resume", "Open rounds again.", "goes on");
  verb("stop", "Finish the round, write a checkpoint, end.", "stops after the open round");

  CLI::App* const probed = app.add_subcommand(
      "probe",
      "Exit 0 when a GET of the URL is answered with 2xx; for health checks of containers.");
  const auto url = std::make_shared<std::string>();
  probed->add_option("URL", *url, "http://HOST:PORT/PATH")->required();
  probed->callback([=, &status] { status = probe(*session, *url); });
}

}  // namespace centroid::client
