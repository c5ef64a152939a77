//! Data passes unchanged, whatever its contents and length, and whatever it passes through.

use std::io::{Seek, SeekFrom};

use super::*;

#[test]
fn no_bytes_one_byte_and_a_chunk() {
    let lab = Lab::new();
    for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1] {
        let bytes = noise(length);
        lab.pipe_with(&["h1:cat", "h2:cat"], &bytes).quietly_gives_bytes(&bytes);
        // From file to file, without a process at either end.
        lab.0.file("home/in", &bytes);
        lab.pipe(&["h1:< in", "h2:> out"]).quietly_gives("");
        holds(&lab.join("home/out"), &bytes);
        lab.pipe_with(&["h:tee copy"], &bytes).quietly_gives_bytes(&bytes);
        holds(&lab.join("home/copy"), &bytes);
        lab.pipe_with(&["cat"], &bytes).quietly_gives_bytes(&bytes);
    }
    lab.deserted(GONE);
}

/// What one command has sent, the next one does not send again.
#[test]
fn a_file_as_standard_input_is_read_from_its_offset_and_once() {
    let lab = Lab::new();
    let bytes = noise(2 * CHUNK);
    let file = fs::File::open(lab.0.file("in", &bytes)).expect("just made");
    let shared = || file.try_clone().expect("a file");
    (&file).seek(SeekFrom::Start(100)).expect("a regular file");
    run(lab.rdpipe_by("rsh").arg("h:cat").stdin(shared())).quietly_gives_bytes(&bytes[100..]);
    run(lab.rdpipe_by("rsh").arg("h:cat").stdin(shared())).quietly_gives("");
    (&file).seek(SeekFrom::Start(200)).expect("a regular file");
    let mut command = lab.command(rdcp(), "rsh", AGENT);
    Process::spawn(command.arg("-").arg(lab.there("h", "out")).stdin(shared())).wait().expect(0);
    holds(&lab.join("out"), &bytes[200..]);
    assert_eq!((&file).stream_position().expect("a regular file"), bytes.len() as u64);
    lab.deserted(GONE);
}

#[test]
fn sixty_four_mebibytes() {
    let lab = Lab::new();
    let bytes = noise(64 << 20);
    lab.pipe_with(&["h1:cat", "h2:tee copy", "h3:cat"], &bytes).quietly_gives_bytes(&bytes);
    holds(&lab.join("home/copy"), &bytes);
    lab.deserted(GONE);
}

#[test]
#[ignore = "long"]
fn a_gibibyte() {
    let lab = Lab::new();
    let bytes = noise(1 << 30);
    lab.0.file("home/in", &bytes);
    for stages in [&["h1:< in", "h2:cat", "h1:> out"][..], &["h1:cat in", "h2:tee half", "h3:tee out", "h1:wc -c"]] {
        let process = Process::spawn(lab.rdpipe_by("rsh").args(stages));
        finish(process, Duration::from_secs(300)).ended.expect(0);
        holds(&lab.join("home/out"), &bytes);
        fs::remove_file(lab.join("home/out")).expect("it is there");
    }
    lab.deserted(GONE);
}

#[test]
fn encrypted_compressed_and_in_lanes() {
    let lab = Lab::new();
    let (plain, random) = (text(5 * CHUNK + 3), noise(5 * CHUNK + 3));
    for options in [
        &["--encrypt", "always"][..],
        &["--encrypt", "never", "--lanes", "4"],
        &["--compress", "zstd", "--encrypt", "always"],
        &["--compress", "auto", "--lanes", "1", "--buffer", "256K"],
        &["--transport", "tcp"],
        &["--relay"],
    ] {
        for bytes in [&plain, &random] {
            let arguments = [options, &["h1:cat", "h2:cat", "cat"]].concat();
            let ran = lab.pipe_with(&arguments, bytes);
            ran.gives(bytes);
        }
    }
    lab.deserted(GONE);
}

#[test]
fn what_comes_in_small_pieces_is_not_held_back() {
    let lab = Lab::new();
    let mut process = lab.start(&["h1:cat", "h2:cat"]);
    let (mut input, mut output) = (process.stdin(), process.stdout());
    for number in 0..20_u8 {
        std::io::Write::write_all(&mut input, &[number, b'\n']).expect("a pipe");
        let mut piece = [0; 2];
        std::io::Read::read_exact(&mut output, &mut piece).expect("it comes back");
        assert_eq!(piece, [number, b'\n']);
    }
    drop(input);
    process.wait().expect(0);
    lab.deserted(GONE);
}

#[test]
fn a_tree_by_tar_and_gzip() {
    let lab = Lab::new();
    for number in 0..40 {
        let directory = lab.join(&format!("home/tree/d{}", number % 4));
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join(format!("f{number}")), text(number * 1111)).expect("a file");
    }
    fs::create_dir(lab.join("home/copy")).expect("a directory");
    lab.pipe(&["h1:tar cf - tree", "h2:gzip -1", "h1:gzip -d", "h3:tar xf - -C copy"]).quietly_gives("");
    let mut diff = Command::new("diff");
    let status = diff.arg("-r").args([lab.join("home/tree"), lab.join("home/copy/tree")]).status().expect("diff");
    assert!(status.success());
    lab.deserted(GONE);
}

/// A film is made on one host, compressed losslessly on the next, and decompressed on a third.
/// Every frame stays the same.
#[test]
fn a_film_by_ffmpeg() {
    let lab = Lab::new();
    let make = "ffmpeg -v error -f lavfi -i testsrc2=duration=4:size=320x240:rate=25 -c:v rawvideo -f nut -";
    let unpack = "ffmpeg -v error -f nut -i - -f framemd5 -";
    let pack = "ffmpeg -v error -f nut -i - -c:v ffv1 -f nut -";
    // Lines above the frames name the program that made them.
    let frames = |text: &[u8]| -> Vec<String> {
        let text = String::from_utf8(text.to_vec()).expect("text");
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    let alone = Command::new("sh").args(["-c", &format!("{make} | {unpack}")]).output().expect("ffmpeg");
    let right = frames(&alone.stdout);
    assert_eq!(right.len(), 100, "{}", String::from_utf8_lossy(&alone.stderr));
    let ran = lab.pipe(&[&format!("h1:{make}"), &format!("h2:{pack}"), "h1:tee film", &format!("h3:{unpack}")]);
    ran.ended.expect(0);
    assert_eq!(frames(&ran.output), right);
    lab.pipe(&["h2:< film", &format!("h1:{unpack} > frames")]).quietly_gives("");
    assert_eq!(frames(lab.text_of("home/frames").as_bytes()), right);
    lab.deserted(GONE);
}

#[test]
fn sums_and_counts() {
    let lab = Lab::new();
    let bytes = noise(4 * CHUNK);
    lab.0.file("bytes", &bytes);
    let sum = |path: &Path| {
        let output = Command::new("sha256sum").stdin(fs::File::open(path).expect("it")).output().expect("sha256sum");
        String::from_utf8(output.stdout).expect("text")
    };
    let right = sum(&lab.join("bytes"));
    lab.pipe_with(&["h:sha256sum"], &bytes).quietly_gives(&right);
    lab.pipe_with(&["h1:tee one", "h2:tee two", "h3:sha256sum"], &bytes).quietly_gives(&right);
    assert_eq!((sum(&lab.join("home/one")), sum(&lab.join("home/two"))), (right.clone(), right.clone()));
    let both = "tee >(sha256sum > sum) >(wc -c > count) | tr -d '\\n' | wc -l";
    lab.pipe_with(&["--shell", "bash", &format!("h:{both}")], &bytes).quietly_gives("0\n");
    lab.deserted(GONE);
    assert_eq!((lab.text_of("home/sum"), lab.text_of("home/count")), (right, format!("{}\n", bytes.len())));
    lab.deserted(GONE);
}

#[test]
fn tee_is_done_without_a_process() {
    let lab = Lab::new();
    // After a few bytes the stream pauses, and the running processes are those that make up the pipeline.
    lab.0.file("home/more", b"before ");
    let mut process = lab.start(&["h1:tee ./a_copy", "h2:tee -a more"]);
    let (mut input, mut output) = (process.stdin(), process.stdout());
    std::io::Write::write_all(&mut input, b"and after").expect("a pipe");
    let mut came = [0; 9];
    std::io::Read::read_exact(&mut output, &mut came).expect("it comes through");
    assert_eq!(&came, b"and after");
    let names: Vec<String> = marked(lab.0.path()).into_iter().map(|process| process.name).collect();
    assert!(names.iter().any(|name| name.starts_with("rdma-pipe")), "{names:?}");
    assert!(!names.iter().any(|name| ["tee", "sh"].contains(&name.as_str())), "{names:?}");
    drop(input);
    process.wait().expect(0);
    assert_eq!(
        (lab.text_of("home/a_copy").as_str(), lab.text_of("home/more").as_str()),
        ("and after", "before and after")
    );
    // With anything else in the line, the shell runs tee.
    for stage in ["h:tee x y", "h:tee ~/x | cat > y", "h:tee \"$HOME/x\" \"$HOME\"/y", "h:tee -i x; cp x y"] {
        lab.pipe_with(&[stage], b"twice").ended.expect(0);
        assert_eq!((lab.text_of("home/x").as_str(), lab.text_of("home/y").as_str()), ("twice", "twice"), "{stage}");
        for name in ["x", "y"] {
            fs::remove_file(lab.join("home").join(name)).expect("it is there");
        }
    }
    for stage in ["h:tee ~/x", "h:tee $HOME/x", "h:tee ./x", "tee home/x", "h: tee  x"] {
        lab.pipe_with(&[stage], b"once").quietly_gives("once");
        assert_eq!(lab.text_of("home/x"), "once", "{stage}");
        fs::remove_file(lab.join("home/x")).expect("it is there");
    }
    lab.deserted(GONE);
}

/// The user's shell decides as which user, and where, tee runs.
#[test]
fn tee_is_run_by_the_users_own_shell() {
    let lab = Lab::new();
    fs::create_dir(lab.join("home/elsewhere")).expect("a directory");
    let shell = lab.script("other", "cd \"$HOME/elsewhere\"; exec sh \"$@\"");
    let shell = shell.to_str().expect("of our own");
    lab.pipe_with(&["--shell", shell, "h1:cat", "h2:tee f", "h3:cat"], b"some").quietly_gives("some");
    assert_eq!(lab.text_of("home/elsewhere/f"), "some");
    assert!(!lab.join("home/f").exists());
    lab.deserted(GONE);
}

/// Such a name is a different file for each process. For tee it means what it means for any tee, and never the
/// descriptors through which the agent and its caller communicate.
#[test]
fn tee_of_descriptors_by_name() {
    let lab = Lab::new();
    std::os::unix::fs::symlink("/dev/stdout", lab.join("home/link")).expect("a link");
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link", "/proc/thread-self/fd/1"] {
        lab.pipe_with(&["h1:cat", &format!("h2:tee {name}"), "h3:cat"], b"twice").quietly_gives("twicetwice");
    }
    let ran = lab.pipe_with(&["h1:cat", "h2:tee /dev/stderr", "h3:cat"], b"twice\n");
    ran.gives(b"twice\n");
    assert_eq!(ran.ended.stderr, "h2: twice\n");
    // Regardless of the stream's contents, which here are an agent's message that stage 0 ended with
    // exit code 7, and its length.
    let shaped = b"\x0c\0\0\0\x82\x18\x42\x82\x00\x84\x07\xf6\xf6\x00";
    for number in 3..20 {
        let ran = lab.pipe_with(&["h1:cat", &format!("h2:tee /proc/self/fd/{number}"), "h3:cat"], shaped);
        // Most of these descriptors are not open in tee.
        assert!([0, 1].contains(&ran.ended.code), "{number}: {} {}", ran.ended.code, ran.ended.stderr);
        same(&ran.output, shaped);
    }
    lab.deserted(GONE);
}

/// The same for the operands of a copy: nothing is read from the caller's messages, or written to the agent's.
#[test]
fn a_copy_of_an_agents_own_descriptors() {
    let lab = Lab::new();
    lab.0.file("in", b"in");
    let copy = |from: &str, to: &str| {
        let mut command = lab.command(rdcp(), "rsh", AGENT);
        Process::spawn(command.args([from, to]).stdin(Stdio::null())).wait_for(FAILED)
    };
    for number in [0, 1, 3, 4, 5, 6, 7, 8] {
        let name = format!("h:/proc/self/fd/{number}");
        let (read, written) = (copy(&name, "out"), copy("in", &name));
        // The first two descriptors are /dev/null.
        let codes = if number < 2 { [0, 0] } else { [5, 6] };
        assert_eq!([read.code, written.code], codes, "{number}: {} {}", read.stderr, written.stderr);
    }
    lab.deserted(GONE);
}

#[test]
fn two_pipelines_at_once_on_the_same_hosts() {
    let lab = Lab::new();
    let (one, other) = (noise(6 * CHUNK), text(6 * CHUNK + 1));
    let port = free_port().to_string();
    let stages = ["-p", &port, "--bwlimit", "8M", "h1:cat", "h2:cat", "h1:cat"];
    let mut processes: Vec<Process> = (0..3).map(|_| lab.start(&stages)).collect();
    let inputs = [&one, &other, &one];
    let fed: Vec<_> =
        processes.iter_mut().zip(inputs).map(|(process, bytes)| feed(process.stdin(), bytes.clone())).collect();
    let outputs: Vec<_> = processes.iter_mut().map(|process| drain(process.stdout())).collect();
    for ((mut process, output), bytes) in processes.into_iter().zip(outputs).zip(inputs) {
        process.wait().expect(0);
        same(&output.join().expect("no panic"), bytes);
    }
    fed.into_iter().for_each(|fed| fed.join().expect("no panic"));
    lab.deserted(GONE);
}

#[test]
fn many_stages() {
    let lab = Lab::new();
    let bytes = noise(CHUNK / 2);
    let stages: Vec<String> = (0..12).map(|number| format!("h{}:cat", number % 5)).collect();
    lab.pipe_with(&stages, &bytes).quietly_gives_bytes(&bytes);
    let here: Vec<&str> = vec!["cat"; 12];
    lab.pipe_with(&here, &bytes).quietly_gives_bytes(&bytes);
    lab.deserted(GONE);
}
