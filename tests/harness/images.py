"""Images of Centroid for the tests of containers, and podman.

build_of_programs lays out the images' files from programs that are built, as deploy/Dockerfile does, and runs the Dockerfile's own last stages
over them: no registry, no second compilation. build_by_dockerfile builds everything as a user does.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from harness import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
BASE = "debian:bookworm-slim"
CUDA_BASE = re.search(r"^FROM (\S+) AS build-cuda$", DOCKERFILE.read_text(), re.MULTILINE)[1]
USER = 10001
MARK = f"centroid-ops-{os.getpid()}"
KINDS = ("server", "worker", "worker-cuda", "etcd")
LABELLED = {"version": "77.0.1", "revision": "0123abcd"}
IMAGES = {kind: f"localhost/{MARK}-{kind}:test" for kind in KINDS}
NEXT = {kind: image.replace(":test", ":next") for kind, image in IMAGES.items()}  # what an upgrade brings
PULL_SECONDS = 60


def run(*words, timeout=120, check=True, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=timeout, check=False, **more)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done


def podman(*words, **more):
    return run("podman", *words, **more).stdout.strip()


def last_line(done):
    return (done.stderr.strip().splitlines() or ["?"])[-1]


def etcd_folder():
    """Where the program etcd is, or None."""
    found = shutil.which("etcd", path=os.pathsep.join([os.environ.get("OPS_ETCD", ""), os.environ.get("PATH", "")]))
    return found and pathlib.Path(found).parent


def prometheus():
    """Path of the program, or None."""
    return shutil.which("prometheus", path=os.pathsep.join([os.environ.get("OPS_PROMETHEUS", ""), os.environ.get("PATH", "")]))


def why_not(with_dockerfile):
    """Reason to skip, or None."""
    if not shutil.which("podman"):
        return "no podman here; ./centroid test --ops installs it"
    if os.geteuid() != 0:
        return "not root: images keep their files' owners"
    if with_dockerfile:
        if os.environ.get("OPS_DOCKERFILE") != "1":
            return "compiles everything in a container; ./centroid test --ops runs it"
        if run("podman", "image", "exists", BASE, check=False).returncode != 0:
            return f"no image {BASE}, which ./centroid test --ops fetches from a registry or makes of packages (debootstrap)"
    elif not pathlib.Path("/usr/bin/tini-static").exists():
        return "no /usr/bin/tini-static here (package tini)"
    return None


def why_not_build():
    """Reason why podman can build nothing here, or None: storage in a container, no rights. Takes the settings of containers.conf."""
    os.environ.setdefault("CONTAINERS_CONF", str(ROOT / "tests" / "ops" / "containers.conf"))
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "Dockerfile").write_text("FROM scratch\nLABEL smallest=yes\n")
        done = run("podman", "build", "-t", f"localhost/{MARK}-smallest", folder, check=False)
        run("podman", "rmi", "-f", f"localhost/{MARK}-smallest", check=False)
    return None if done.returncode == 0 else "podman cannot build an image: " + last_line(done)


def why_not_run():
    """Reason why podman cannot run the images, or None."""
    for settings in (os.environ.get("CONTAINERS_CONF"), str(ROOT / "tests" / "ops" / "containers.conf")):
        if settings:
            os.environ["CONTAINERS_CONF"] = settings
        done = run("podman", "run", "--rm", "--network", "none", IMAGES["server"], "--version", check=False)
        if done.returncode == 0:
            return None
    return "podman cannot start a container: " + last_line(done)


def why_not_cuda():
    """Reason why the target worker-cuda cannot be built by the Dockerfile here, or None: its base image is tried once."""
    if run("podman", "image", "exists", CUDA_BASE, check=False).returncode == 0:
        return None
    try:
        done = run("podman", "pull", "-q", CUDA_BASE, timeout=PULL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{CUDA_BASE} was not pulled within {PULL_SECONDS} s"
    return None if done.returncode == 0 else f"{CUDA_BASE} cannot be pulled: {last_line(done)}"


def compiler_cache():
    """Options that lend the container this machine's ccache: where the compilers are the same, what was compiled here is not compiled again."""
    folder = shutil.which("ccache") and run("ccache", "--get-config", "cache_dir").stdout.strip()
    return ["-v", f"{folder}:/root/.cache/ccache"] if folder and os.path.isdir(folder) else []


def built_as(kind):
    """What the labels of an image shall say of its origin; Debian's etcd has its own."""
    return [] if kind == "etcd" else [word for name, value in LABELLED.items() for word in ("--build-arg", f"{name.upper()}={value}")]


def build_by_dockerfile(kinds):
    for kind in kinds:
        words = ["build", "--network", "host", "--layers", "--format", "docker", *compiler_cache(), *built_as(kind), "-f", DOCKERFILE, "--target", kind, "-t", IMAGES[kind], ROOT]
        podman(*words, timeout=3000)


def last_stage(kind):
    """The text of the Dockerfile's stage of this name, and the folder that it copies."""
    stage = re.search(rf"^FROM scratch AS {kind}\n(?:.+\n)+", DOCKERFILE.read_text(), re.MULTILINE)[0]
    source = re.search(r"^COPY --from=build\S* /root-(\S+) /$", stage, re.MULTILINE)
    return stage, source[0], source[1]


def build_of_programs(programs):
    """Of every kind but etcd, where that program is not here; each twice, the second for upgrades."""
    with tempfile.TemporaryDirectory(prefix="centroid-images-") as folder:
        for kind in KINDS:
            where = etcd_folder() if kind == "etcd" else programs
            if where is None:
                continue
            stage, copy, source = last_stage(kind)
            root, archive = f"{folder}/root-{source}", f"{folder}/{source}.tar"
            if not os.path.exists(archive):
                run(ROOT / "deploy" / "image-root", source, where, root, cwd=ROOT)
                run("tar", "-C", root, "-cf", archive, ".")  # keeps owners, which COPY from a folder does not
            file = pathlib.Path(folder) / f"Dockerfile.{kind}"
            file.write_text(stage.replace(copy, f"ADD {source}.tar /"))
            podman("build", "--format", "docker", *built_as(kind), "-f", file, "-t", IMAGES[kind], folder)
            podman("build", "--format", "docker", *built_as(kind), "-f", file, "--label", "release=next", "-t", NEXT[kind], folder)


def build_prometheus(image):
    """This machine's Prometheus as an image that starts as the project's own does: its user, its folder, its arguments (Dockerfile of prometheus 2.55)."""
    program = prometheus()
    with tempfile.TemporaryDirectory(prefix="centroid-images-") as name:
        folder = pathlib.Path(name)
        loaded = re.findall(r"(/\S+) \(0x", run("ldd", program, check=False).stdout)
        for path, place in ((program, "bin/prometheus"), *((path, path[1:]) for path in loaded)):
            (folder / "root" / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / "root" / place)
        (folder / "root" / "etc").mkdir()
        (folder / "root" / "etc" / "passwd").write_text("nobody:x:65534:65534::/:/nonexistent\n")
        (folder / "root" / "etc" / "nsswitch.conf").write_text("hosts: files dns\n")
        (folder / "root" / "prometheus").mkdir()
        shutil.chown(folder / "root" / "prometheus", 65534, 65534)
        run("tar", "-C", folder / "root", "-cf", folder / "root.tar", ".")  # keeps owners
        start = ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
        text = f'FROM scratch\nADD root.tar /\nUSER 65534\nEXPOSE 9090\nVOLUME /prometheus\nENTRYPOINT ["/bin/prometheus"]\nCMD {json.dumps(start)}\n'
        (folder / "Dockerfile").write_text(text)
        podman("build", "--format", "docker", "-t", image, folder)


def remove_images():
    for image in [*IMAGES.values(), *NEXT.values()]:
        run("podman", "rmi", "-f", image, check=False)


def exists(kind):
    return run("podman", "image", "exists", IMAGES[kind], check=False).returncode == 0


def inspect(name):
    return json.loads(podman("inspect", name))[0]
