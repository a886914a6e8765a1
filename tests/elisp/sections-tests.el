;;; sections-tests.el --- Sections and reminders -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Real directories, git repositories and Flymake buffers.  A test names
;; the rule that it holds.

;;; Code:

(require 'ert)
(require 'ert-x)
(require 'cl-lib)
(require 'flymake)
(require 'gptel)
(require 'gptel-openai)
(require 'gptel-transient)
(require 'gptel-retention-sections)

(defmacro sections-tests-with (&rest body)
  "Run BODY in a new conversation buffer in a new directory.
The directory is bound to `directory'; definitions made in BODY go."
  (declare (indent 0) (debug t))
  `(ert-with-temp-directory directory
     (setq directory (file-truename directory))
     (let ((gptel-retention-section-definitions
            (mapcar (lambda (cell) (cons (car cell) (cdr cell)))
                    gptel-retention-section-definitions))
           (gptel-retention-reminder-definitions
            (mapcar (lambda (cell) (cons (car cell) (cdr cell)))
                    gptel-retention-reminder-definitions))
           (gptel-context nil))
       (with-temp-buffer
         (setq default-directory directory)
         ,@body))))

(defun sections-tests-write (directory name &rest lines)
  "Write LINES to the file NAME below DIRECTORY and return its name."
  (let ((file (expand-file-name name directory)))
    (make-directory (file-name-directory file) t)
    (let ((coding-system-for-write 'utf-8-unix))
      (write-region (mapconcat (lambda (line) (concat line "\n")) lines "")
                    nil file nil 'silent))
    file))

(defun sections-tests-git (&rest args)
  "Run git with ARGS in `default-directory' and fail if it fails."
  (with-temp-buffer
    (let ((process-environment
           `("GIT_CONFIG_GLOBAL=/dev/null" "GIT_CONFIG_SYSTEM=/dev/null"
             "GIT_AUTHOR_NAME=a" "GIT_AUTHOR_EMAIL=a@example.org"
             "GIT_COMMITTER_NAME=a" "GIT_COMMITTER_EMAIL=a@example.org"
             ,@process-environment)))
      (should (eql 0 (apply #'process-file "git" nil t nil args))))))

(defun sections-tests-bodies (&optional loopp selection)
  "Collect with LOOPP and SELECTION and return the list of bodies."
  (mapcar (lambda (section) (plist-get section :body))
          (gptel-retention-sections-collect loopp selection)))

(defun sections-tests-reminders (&optional loopp)
  "Collect as one request with LOOPP does and return the reminders."
  (gptel-retention-sections-collect loopp)
  (append (gptel-retention-reminders-collect) nil))

(defun sections-tests-keys (&optional loopp)
  "Collect as one request with LOOPP does and return the reminders' keys."
  (mapcar (lambda (reminder) (plist-get reminder :key))
          (sections-tests-reminders loopp)))

(defmacro sections-tests-messages (&rest body)
  "Run BODY and return what it showed in the echo area, in order."
  (declare (indent 0) (debug t))
  `(let ((text-quoting-style 'grave)
         messages)
     (cl-letf (((symbol-function 'message)
                (lambda (format &rest args)
                  (when format
                    (push (apply #'format-message format args) messages)))))
       ,@body)
     (nreverse messages)))


;;; Collecting

(ert-deftest sections-collect-follows-the-selection ()
  "What is collected is the selection, in its order, as wire values."
  (sections-tests-with
    (gptel-retention-define-section 'one :title "One" :body (lambda () "1"))
    (gptel-retention-define-section 'two-b :kind 'guidance :body #'ignore)
    (setq-local gptel-retention-sections '(two-b one two-b))

    (should (equal (gptel-retention-sections-collect nil)
                   [( :name "two-b" :title "Two b" :kind "guidance"
                      :body :null)
                    (:name "one" :title "One" :kind "fact" :body "1")]))))

(ert-deftest sections-collect-blank-is-no-body ()
  "D1: a blank body crosses as null, so that it is stated as nothing."
  (sections-tests-with
    (gptel-retention-define-section 'blank :body (lambda () " \n"))

    (should (equal (sections-tests-bodies nil '(blank)) '(:null)))))

(ert-deftest sections-collect-body-has-a-json-form ()
  "Raw bytes, lone surrogates and text properties do not reach the wire."
  (sections-tests-with
    (gptel-retention-define-section 'odd
      :body (lambda () (concat (propertize "a" 'face 'bold)
                               (string #x3fffff #xd800 #x1f600))))
    (gptel-retention-define-section 'unibyte
      :body (lambda () (encode-coding-string "é" 'utf-8)))

    (should (equal-including-properties
             (sections-tests-bodies nil '(odd unibyte))
             (list "a\ufffd\ufffd\U0001f600" "é")))
    (should (json-serialize (gptel-retention-sections-collect
                             nil '(odd unibyte))))))

(ert-deftest sections-collect-reports-an-error-once ()
  "D9: a body that signals is marked each time and reported once."
  (sections-tests-with
    (gptel-retention-define-section 'bad :body (lambda () (error "Boom")))
    (gptel-retention-define-section 'number :body (lambda () 7))
    (setq-local gptel-retention-sections '(bad number))

    (should (equal
             (sections-tests-messages
               (dotimes (_ 3)
                 (should (equal (mapcar (lambda (s) (plist-get s :error))
                                        (gptel-retention-sections-collect
                                         nil))
                                '(t t)))))
             '("[retention] Section `bad' could not be read and counts as \
unchanged: Boom"
               "[retention] Section `number' could not be read and counts \
as unchanged: Wrong type argument: stringp, 7")))))

(ert-deftest sections-collect-recovers-after-an-error ()
  "D9: a body that works again is supplied again."
  (sections-tests-with
    (let ((fail t))
      (gptel-retention-define-section 'bad
        :body (lambda () (if fail (error "Boom") "fine")))
      (sections-tests-messages
        (gptel-retention-sections-collect nil '(bad)))
      (setq fail nil)

      (should (equal (gptel-retention-sections-collect nil '(bad))
                     [(:name "bad" :title "Bad" :kind "fact"
                             :body "fine")])))))

(ert-deftest sections-collect-lets-quit-through ()
  "A quit in a body is the user's and is not an error of the section."
  (sections-tests-with
    (gptel-retention-define-section 'stop
      :body (lambda () (signal 'quit nil)))

    (should (eq 'quit (condition-case nil
                          (gptel-retention-sections-collect nil '(stop))
                        (quit 'quit))))))

(ert-deftest sections-collect-states-an-undefined-name ()
  "D1: a selected name that nothing defines is not omitted silently."
  (sections-tests-with
    (setq-local gptel-retention-sections '(no-such))
    (let (sections)
      (should (equal (sections-tests-messages
                       (setq sections (gptel-retention-sections-collect nil)))
                     '("[retention] Section `no-such' is selected but not \
defined")))
      (should (equal sections
                     [( :name "no-such" :title "No such" :kind "fact"
                        :body :null :error t)])))))

(ert-deftest sections-collect-leaves-buffer-and-match-alone ()
  "A body that moves about changes neither point, buffer nor match data."
  (sections-tests-with
    (insert "some text")
    (goto-char 3)
    (gptel-retention-define-section 'mover
      :body (lambda ()
              (goto-char (point-max))
              (string-match "t" "test")
              (set-buffer (get-buffer-create "*scratch*"))
              "moved"))
    (string-match "x" "abcx")
    (let ((buffer (current-buffer)))
      (gptel-retention-sections-collect nil '(mover))

      (should (equal (list (eq buffer (current-buffer)) (point)
                           (match-beginning 0))
                     '(t 3 3))))))

(ert-deftest sections-define-refuses-nonsense ()
  "A definition that cannot work is refused where it is written."
  (sections-tests-with
    (should-error (gptel-retention-define-section 'x :body "text")
                  :type 'wrong-type-argument)
    (should-error (gptel-retention-define-section "x" :body #'ignore)
                  :type 'wrong-type-argument)
    (should-error (gptel-retention-define-section 'x :kind 'hint
                    :body #'ignore)
                  :type 'wrong-type-argument)
    (should-not (assq 'x gptel-retention-section-definitions))))


;;; Caching (H7)

(ert-deftest sections-cache-keeps-bodies-within-a-turn ()
  "H7: in the loop only live sections are read again."
  (sections-tests-with
    (let ((count 0))
      (gptel-retention-define-section 'plain
        :body (lambda () (format "plain %d" (cl-incf count))))
      (gptel-retention-define-section 'live :live t
        :body (lambda () (format "live %d" (cl-incf count))))
      (setq-local gptel-retention-sections '(plain live))

      (should (equal (list (sections-tests-bodies nil)
                           (sections-tests-bodies t)
                           (sections-tests-bodies t)
                           (sections-tests-bodies nil))
                     '(("plain 1" "live 2") ("plain 1" "live 3")
                       ("plain 1" "live 4") ("plain 5" "live 6")))))))

(ert-deftest sections-cache-slow-live-is-read-once-a-turn ()
  "H7: a live section over the limit counts as read for this turn."
  (sections-tests-with
    (let ((count 0)
          (gptel-retention-slow-section 0.001))
      (gptel-retention-define-section 'slow :live t
        :body (lambda ()
                (let ((end (+ (float-time) 0.002)))
                  (while (< (float-time) end)))
                (number-to-string (cl-incf count))))

      (should (equal (list (sections-tests-bodies nil '(slow))
                           (sections-tests-bodies t '(slow))
                           (sections-tests-bodies t '(slow))
                           (sections-tests-bodies nil '(slow)))
                     '(("1") ("1") ("1") ("2")))))))

(ert-deftest sections-cache-remote-is-not-read-in-the-loop ()
  "H7: in a remote buffer nothing is read in a sentinel, but by a timer."
  (sections-tests-with
    (let ((count 0))
      (gptel-retention-define-section 'live :live t
        :body (lambda () (number-to-string (cl-incf count))))
      (setq-local gptel-retention-sections '(live))
      (setq default-directory "/ssh:nowhere.invalid:/tmp/")
      (should (equal (sections-tests-bodies nil) '("1")))
      (should (equal (sections-tests-bodies t) '("1")))
      (let ((timer (gptel-retention-sections--state-timer
                    gptel-retention-sections--state)))
        (should (memq timer timer-idle-list))

        (timer-event-handler timer)

        (should (equal (sections-tests-bodies t) '("2")))
        (gptel-retention-sections-reset)
        (should-not (memq timer timer-idle-list))))))

(ert-deftest sections-selection-stays-within-a-turn ()
  "D7: a selection that changes in the loop applies to the next turn."
  (sections-tests-with
    (gptel-retention-define-section 'one :body (lambda () "1"))
    (gptel-retention-define-section 'two :body (lambda () "2"))
    (setq-local gptel-retention-sections '(one))
    (gptel-retention-sections-collect nil)
    (setq-local gptel-retention-sections '(two))

    (should (equal (sections-tests-bodies t) '("1")))
    (should (equal (sections-tests-bodies nil) '("2")))))

(ert-deftest sections-selection-of-a-request-leaves-the-turn-alone ()
  "D7: a request with its own selection changes nothing for the others."
  (sections-tests-with
    (gptel-retention-define-section 'one :body (lambda () "1"))
    (gptel-retention-define-section 'two :body (lambda () "2"))
    (setq-local gptel-retention-sections '(one))
    (gptel-retention-sections-collect nil)

    (should (equal (sections-tests-bodies nil '(two)) '("2")))
    (should (equal (sections-tests-bodies t) '("1")))))


;;; Presets

(ert-deftest sections-preset-sets-the-selection ()
  "D7: a gptel preset selects sections for one buffer."
  (sections-tests-with
    (gptel-make-preset 'sections-tests-preset
      :retention-sections '(git-state environment))
    (let ((global (default-value 'gptel-retention-sections)))
      (gptel-preset 'sections-tests-preset
                    (lambda (symbol value)
                      (set (make-local-variable symbol) value)))

      (should (equal gptel-retention-sections '(git-state environment)))
      (should (equal (default-value 'gptel-retention-sections) global)))))

(ert-deftest sections-preset-in-the-prompt-holds-for-that-turn ()
  "D7: \"@preset\" in a prompt selects for its turn and no longer."
  (sections-tests-with
    (gptel-retention-define-section 'one :body (lambda () "1"))
    (gptel-retention-define-section 'two :body (lambda () "2"))
    (gptel-make-preset 'sections-tests-two :retention-sections '(two))
    (setq-local gptel-retention-sections '(one))
    (gptel-retention-sections-collect nil)
    (insert "@sections-tests-two hello")
    (let ((gptel-prompt-transform-functions
           (append gptel-prompt-transform-functions
                   '(gptel-retention-sections-note-preset)))
          (gptel-backend (gptel-make-openai "sections-tests"
                           :models '(m) :host "127.0.0.1:1"
                           :protocol "http" :key "none"))
          (gptel-model 'm))
      (gptel-request nil :dry-run t
                     :transforms gptel-prompt-transform-functions)

      (should (equal (list (sections-tests-bodies nil)
                           (sections-tests-bodies t)
                           (sections-tests-bodies nil))
                     '(("2") ("2") ("1")))))))


;;; Environment

(ert-deftest sections-environment-names-day-system-and-place ()
  "The environment has the day, not the time, and the directory."
  (sections-tests-with
    (let ((body (gptel-retention-sections-environment)))
      (should (string-match-p
               (rx bos "Date: " (= 4 digit) "-" (= 2 digit) "-" (= 2 digit)
                   " (" (+ alpha) ")\nOperating system: " (+ nonl)
                   "\nWorking directory: " (literal (expand-file-name
                                                     directory))
                   "\nHost: local" eos)
               body)))))

(ert-deftest sections-environment-names-a-remote-host ()
  "A remote directory is named with its host and method; none is asked."
  (sections-tests-with
    (setq default-directory "/ssh:me@far.invalid:/srv/app/")

    (should (string-suffix-p
             "where Emacs runs\nWorking directory: /srv/app/\nHost: \
me@far.invalid, remote, reached with ssh"
             (gptel-retention-sections-environment)))))


;;; Workspace guidance

(ert-deftest sections-guidance-goes-from-broad-to-narrow ()
  "Guidance is found from the project root down, one file a directory."
  (sections-tests-with
    (sections-tests-git "init" "--quiet")
    (sections-tests-write directory "AGENTS.md" "Root rules.")
    (sections-tests-write directory "CLAUDE.md" "Not this one.")
    (sections-tests-write directory "a/b/CLAUDE.md" "Narrow rules.")
    (sections-tests-write directory "a/c/AGENTS.md" "Elsewhere.")
    (setq default-directory (expand-file-name "a/b/" directory))

    (should (equal (gptel-retention-sections-guidance)
                   (format "From %sAGENTS.md:\n\nRoot rules.\n\n\
From %sa/b/CLAUDE.md:\n\nNarrow rules." directory directory)))))

(ert-deftest sections-guidance-without-a-project-is-the-directory-s ()
  "Outside a project only the directory itself counts."
  (sections-tests-with
    (sections-tests-write directory "AGENTS.md" "Above.")
    (let ((here (file-name-as-directory (expand-file-name "x" directory))))
      (make-directory here)
      (setq default-directory here)
      (should-not (gptel-retention-sections-guidance))
      (sections-tests-write here "AGENTS.md" "Here.")

      (should (equal (gptel-retention-sections-guidance)
                     (format "From %sAGENTS.md:\n\nHere." here))))))

(ert-deftest sections-guidance-states-what-it-cuts ()
  "The narrow file gets its room first; a cut is stated in bytes."
  (sections-tests-with
    (sections-tests-git "init" "--quiet")
    (let ((root (sections-tests-write directory "AGENTS.md" "ééééééé"))
          (narrow (sections-tests-write directory "a/AGENTS.md" "12345678"))
          (gptel-retention-guidance-limit 14))
      (setq default-directory (expand-file-name "a/" directory))

      (should (equal (gptel-retention-sections-guidance)
                     (format "From %s:\n\néé\n\n(cut: the first 4 of 15 \
bytes of %s)\n\nFrom %s:\n\n12345678" root root narrow)))
      (setq gptel-retention-guidance-limit 9)
      (should (string-prefix-p
               (format "%s (15 bytes) is not shown: no room was left." root)
               (gptel-retention-sections-guidance))))))


;;; Git

(ert-deftest sections-git-states-branch-and-changes ()
  "Branch and changed files of a real repository, bounded."
  (sections-tests-with
    (should-not (gptel-retention-sections-git))
    (sections-tests-git "init" "--quiet" "--initial-branch=main")
    (should (equal (gptel-retention-sections-git)
                   "Branch: main (no commits yet)\nThe work tree is clean."))
    (sections-tests-write directory "ü.txt" "x")
    (sections-tests-git "add" ".")
    (sections-tests-git "commit" "--quiet" "-m" "first")
    (should (equal (gptel-retention-sections-git)
                   "Branch: main\nThe work tree is clean."))
    (sections-tests-write directory "ü.txt" "y")
    (sections-tests-write directory "new.txt" "y")
    (should (equal (gptel-retention-sections-git)
                   "Branch: main\nChanged files (2), in git's short \
format:\n M ü.txt\n?? new.txt"))
    (let ((gptel-retention-git-lines 1))
      (should (string-suffix-p "\n M ü.txt\n(1 more files not shown)"
                               (gptel-retention-sections-git))))
    (sections-tests-git "checkout" "--quiet" "--detach")
    (should (string-prefix-p "Branch: none (detached HEAD)\n"
                             (gptel-retention-sections-git)))))

(ert-deftest sections-git-names-the-upstream ()
  "A branch that is ahead of what it tracks says so."
  (should (equal (mapcar #'gptel-retention-sections--git-branch
                         '("## main...origin/main"
                           "## a.b...up/a.b [ahead 2, behind 1]"))
                 '("Branch: main (tracks origin/main)"
                   "Branch: a.b (tracks up/a.b, ahead 2, behind 1)"))))

(ert-deftest sections-git-that-hangs-is-an-error-in-time ()
  "D9: a git that does not answer counts as unchanged; it is killed."
  (sections-tests-with
    (sections-tests-git "init" "--quiet")
    (let ((script (sections-tests-write directory "bin/git"
                                        "#!/bin/sh" "exec sleep 60")))
      (set-file-modes script #o755)
      (let ((exec-path (list (file-name-directory script)))
            (gptel-retention-git-timeout 0.2)
            (before (length (process-list)))
            (start (float-time)))
        (sections-tests-messages
          (should (equal (gptel-retention-sections-collect nil '(git-state))
                         [( :name "git-state" :title "Git state"
                            :kind "fact" :body :null :error t)])))
        (should (< (- (float-time) start) 5))
        (should (= before (length (process-list))))))))


;;; Goal

(ert-deftest sections-goal-states-policy-and-facts-apart ()
  "D3: counters change without the policy."
  (sections-tests-with
    (let ((selection '(goal-policy goal-facts)))
      (should (equal (sections-tests-bodies nil selection) '(:null :null)))
      (setq gptel-retention-goal "Port the parser.")
      (let ((first (sections-tests-bodies nil selection)))
        (gptel-retention-sections-note-prepared '(:total 10))
        (gptel-retention-sections-note-prepared '(:total 10))
        (gptel-retention-reminders-end-turn)
        (let ((second (sections-tests-bodies nil selection)))
          (should (string-prefix-p
                   "Objective: Port the parser.\n\nHow to finish: Work"
                   (car first)))
          (should (equal (car first) (car second)))
          (should (equal (cdr second)
                         '("Turns completed: 1\nRequests sent: 2\nTime \
since it was set: less than 5 minutes")))))
      (setq gptel-retention-goal "Another.")
      (should (string-prefix-p
               "Turns completed: 0\nRequests sent: 0"
               (cadr (sections-tests-bodies nil selection)))))))

(ert-deftest sections-goal-duration-grows-in-steps ()
  "Elapsed time is coarse, so that it changes seldom."
  (should (equal (mapcar #'gptel-retention-sections--duration
                         '(0 299 300 1799 3600 7199 7200 90000))
                 '("less than 5 minutes" "less than 5 minutes" "5 minutes"
                   "25 minutes" "1 hour" "1 hour" "2 hours" "25 hours"))))


;;; Journal, skills, memory

(ert-deftest sections-journal-states-what-is-there ()
  "A configured journal is stated, an explicit none included."
  (sections-tests-with
    (should-not (gptel-retention-sections-journal))
    (let ((gptel-retention-journal-directory
           (expand-file-name "j/" directory))
          (gptel-retention-journal-entries 2))
      (should (string-suffix-p "does not exist."
                               (gptel-retention-sections-journal)))
      (make-directory gptel-retention-journal-directory)
      (should (string-suffix-p "holds no entries."
                               (gptel-retention-sections-journal)))
      (dolist (name '("2026-01-01.md" "2026-01-02.md" "2026-01-03.md"
                      "2026-01-03.md~"))
        (sections-tests-write gptel-retention-journal-directory name "x"))
      (should (string-suffix-p
               "holds 3 entries, by name, the last first:\n\
- 2026-01-03.md\n- 2026-01-02.md\n(1 more entries not shown)"
               (gptel-retention-sections-journal))))))

(ert-deftest sections-skills-have-a-line-each ()
  "Names and descriptions come from the front matter, folded or quoted."
  (sections-tests-with
    (let ((gptel-retention-skills-directories '("one" "two")))
      (should-not (gptel-retention-sections-skills))
      (sections-tests-write directory "one/a/SKILL.md" "---" "name: alpha"
                            "description: >" "  Does one" "  thing."
                            "license: x" "---" "description: no")
      (sections-tests-write directory "one/b/SKILL.md" "No front matter.")
      (sections-tests-write directory "two/c/SKILL.md" "---"
                            "description: \"Quoted: yes\"" "name: gamma"
                            "---")
      (sections-tests-write directory "two/d/SKILL.md" "---" "name: alpha"
                            "---")

      (should (equal (gptel-retention-sections-skills)
                     (string-join
                      (list
                       (format "- alpha (%sone/a/SKILL.md): Does one thing."
                               directory)
                       (format "- b (%sone/b/SKILL.md)" directory)
                       (format "- gamma (%stwo/c/SKILL.md): Quoted: yes"
                               directory))
                      "\n"))))))

(ert-deftest sections-memory-is-the-first-lines ()
  "The memory index is cut after its lines, which is stated."
  (sections-tests-with
    (let* ((gptel-retention-memory-lines 2)
           (gptel-retention-memory-file "MEMORY.md")
           (file (expand-file-name "MEMORY.md" directory)))
      (should (equal (gptel-retention-sections-memory)
                     (format "The memory file %s does not exist." file)))
      (sections-tests-write directory "MEMORY.md" "one" "two")
      (should (equal (gptel-retention-sections-memory)
                     (format "From %s:\n\none\ntwo" file)))
      (sections-tests-write directory "MEMORY.md" "one" "two" "three")
      (should (equal (gptel-retention-sections-memory)
                     (format "From %s:\n\none\ntwo\n\n(cut: the first 2 \
lines of 14 bytes)" file))))))


;;; Diagnostics and resources

(defun sections-tests-flymake (report &rest _)
  "Tell REPORT a warning at the first and an error at the third line."
  (goto-char (point-min))
  (let ((third (save-excursion (forward-line 2) (point))))
    (funcall report
             (list (flymake-make-diagnostic (current-buffer) 1 3 :warning
                                            "first\nline")
                   (flymake-make-diagnostic (current-buffer) third
                                            (+ third 2) :error "third")))))

(ert-deftest sections-diagnostics-come-from-flymake ()
  "Errors come first; buffers outside the project do not count."
  (sections-tests-with
    (sections-tests-git "init" "--quiet")
    (should-not (gptel-retention-sections-diagnostics))
    (let ((buffer (find-file-noselect
                   (sections-tests-write directory "src/x.txt"
                                         "one" "two" "three")))
          (other (ert-with-temp-file file
                   (let ((buffer (find-file-noselect file)))
                     (with-current-buffer buffer
                       (insert "one\ntwo\nthree\n")
                       (set-buffer-modified-p nil))
                     buffer))))
      (unwind-protect
          (progn
            (dolist (each (list buffer other))
              (with-current-buffer each
                (setq-local flymake-diagnostic-functions
                            '(sections-tests-flymake))
                (flymake-mode 1)
                (flymake-start)))

            (should (equal (gptel-retention-sections-diagnostics)
                           "src/x.txt:3: error: third\n\
src/x.txt:1: warning: first line"))
            (let ((gptel-retention-diagnostics-limit 1))
              (should (equal (gptel-retention-sections-diagnostics)
                             "src/x.txt:3: error: third\n\
(1 more diagnostics not shown)"))))
        (kill-buffer buffer)
        (kill-buffer other)))))

(ert-deftest sections-resources-are-names ()
  "Files and buffers of gptel's context are named, dead ones are not."
  (sections-tests-with
    (should-not (gptel-retention-sections-resources))
    (let* ((file (sections-tests-write directory "x.txt" "x"))
           (dead (generate-new-buffer "dead"))
           (gptel-context `(,file (,(current-buffer) :bounds ((1 . 2)))
                                  ,dead)))
      (kill-buffer dead)

      (should (equal (gptel-retention-sections-resources)
                     (format "- file %s\n- buffer %s (parts of it)"
                             file (buffer-name)))))))


;;; Events (D8)

(ert-deftest reminders-event-is-collected-until-delivered ()
  "D5, D8: an event stays due while nothing was committed, then goes."
  (sections-tests-with
    (setq-local gptel-retention-reminders nil)
    (let (then)
      (gptel-retention-remind 'build "The build broke."
                              :then (lambda () (setq then t)))
      (let ((event '( :key "build" :body "The build broke." :policy "on"
                      :turns 0 :state :null)))
        (should (equal (sections-tests-reminders) (list event)))
        (should (equal (sections-tests-reminders t) (list event))))
      (gptel-retention-reminders-delivered ["build" "other"])

      (should then)
      (should-not (sections-tests-reminders t)))))

(ert-deftest reminders-events-coalesce-by-key ()
  "D8: a later event of a key takes the place of the earlier."
  (sections-tests-with
    (setq-local gptel-retention-reminders nil)
    (gptel-retention-remind "a" "first")
    (gptel-retention-remind "b" "other")
    (gptel-retention-remind 'a "second" :policy 'once)

    (should (equal (mapcar (lambda (r) (cons (plist-get r :body)
                                             (plist-get r :policy)))
                           (sections-tests-reminders))
                   '(("second" . "once") ("other" . "on"))))))

(ert-deftest reminders-event-ends-with-its-turn ()
  "D8: an undelivered event is dropped at the end, unless it survives."
  (sections-tests-with
    (setq-local gptel-retention-reminders nil)
    (gptel-retention-remind "a" "gone")
    (gptel-retention-remind "b" "kept" :survive t)
    (gptel-retention-reminders-end-turn)

    (should (equal (sections-tests-keys) '("b")))
    (gptel-retention-reminders-delivered '("b"))
    (should-not (sections-tests-keys))))

(ert-deftest reminders-event-belongs-to-its-conversation ()
  "D8: an event of one buffer appears in no other."
  (sections-tests-with
    (setq-local gptel-retention-reminders nil)
    (let ((one (current-buffer)))
      (with-temp-buffer
        (setq-local gptel-retention-reminders nil)
        (gptel-retention-remind "a" "for the other" :buffer one)
        (should-not (sections-tests-keys))
        (gptel-retention-reminders-end-turn))
      (should (equal (sections-tests-keys) '("a"))))))

(ert-deftest reminders-raised-by-a-delivery-stay ()
  "An event that :then raises anew is due at the next request."
  (sections-tests-with
    (setq-local gptel-retention-reminders nil)
    (gptel-retention-remind
     "a" "one" :then (lambda () (gptel-retention-remind "a" "two")))
    (gptel-retention-reminders-delivered '("a"))

    (should (equal (mapcar (lambda (r) (plist-get r :body))
                           (sections-tests-reminders))
                   '("two")))))


;;; Standing reminders

(ert-deftest reminders-standing-have-policy-and-state ()
  "D8: each policy crosses with what decides whether it is due."
  (sections-tests-with
    (let ((state nil))
      (gptel-retention-define-reminder 'hello :policy 'once :body "Hello.")
      (gptel-retention-define-reminder 'often :policy '(every 3)
        :body (lambda () "Often."))
      (gptel-retention-define-reminder 'quiet :policy 'once :body #'ignore)
      (gptel-retention-define-reminder 'cond
        :policy `(while ,(lambda () state)) :body "Now.")
      (setq-local gptel-retention-reminders '(hello often quiet cond))
      (should (equal
               (sections-tests-reminders)
               '(( :key "hello" :body "Hello." :policy "once" :turns 0
                   :state :null)
                 ( :key "often" :body "Often." :policy "every" :turns 3
                   :state :null)
                 ( :key "cond" :body "" :policy "while" :turns 0
                   :state :null))))
      (setq state t)
      (should (equal (car (last (sections-tests-reminders t)))
                     '( :key "cond" :body "Now." :policy "while" :turns 0
                        :state "t")))
      (setq state "red")
      (should (equal (plist-get (car (last (sections-tests-reminders t)))
                                :state)
                     "red")))))

(ert-deftest reminders-standing-of-a-buffer-stay-until-cancelled ()
  "A recurring reminder survives deliveries and turns until cancelled."
  (sections-tests-with
    (setq-local gptel-retention-reminders nil)
    (gptel-retention-remind 'tick "Tick." :policy '(every 2))
    (gptel-retention-reminders-delivered '("tick"))
    (gptel-retention-reminders-end-turn)
    (should (equal (sections-tests-keys) '("tick")))
    (gptel-retention-cancel-reminder 'tick)

    (should-not (sections-tests-keys))))

(ert-deftest reminders-condition-that-fails-says-nothing ()
  "An error in a condition is reported once; the others are collected."
  (sections-tests-with
    (gptel-retention-define-reminder 'bad
      :policy `(while ,(lambda () (error "Boom"))) :body "Never.")
    (gptel-retention-define-reminder 'good :policy 'once :body "Yes.")
    (setq-local gptel-retention-reminders '(bad good))

    (should (equal (sections-tests-messages
                     (dotimes (_ 2)
                       (should (equal (sections-tests-keys) '("good")))))
                   '("[retention] Reminder `bad' failed: Boom")))))

(ert-deftest reminders-refuse-an-unknown-policy ()
  "A policy that means nothing is refused and leaves nothing."
  (sections-tests-with
    (setq-local gptel-retention-reminders nil)
    (dolist (policy '(sometimes (every 0) (every "2") (while 3)))
      (should-error (gptel-retention-remind 'x "y" :policy policy)))
    (should-not (sections-tests-keys))))


;;; Changed files

(defun sections-tests-touch (file)
  "Give FILE another modification time."
  (set-file-times file (time-add nil 10)))

(ert-deftest reminders-file-changed-after-a-tool-read-it ()
  "A file that a tool call named is watched until its change is delivered."
  (sections-tests-with
    (let* ((gptel-retention-reminders '(file-changed))
           (file (sections-tests-write directory "x.txt" "x"))
           (key (concat "file-changed:" file)))
      (gptel-retention-reminders-note-tool
       '( :name "read" :args (:path "x.txt" :n 3 :more ["absent" (:a "b")])))
      (should-not (sections-tests-keys))
      (sections-tests-touch file)
      (should (equal (sections-tests-keys) (list key)))
      ;; Undelivered: dropped with its turn, raised again by the next.
      (gptel-retention-reminders-end-turn)
      (should (equal (sections-tests-reminders)
                     `(( :key ,key
                         :body ,(format "The file %s changed on disk after \
you last saw it. Read it again before you rely on its content." file)
                         :policy "on" :turns 0 :state :null))))
      (gptel-retention-reminders-delivered (list key))
      (gptel-retention-reminders-end-turn)
      (should-not (sections-tests-keys))
      (delete-file file)
      (should (string-suffix-p
               "no longer exists."
               (plist-get (car (sections-tests-reminders)) :body))))))

(ert-deftest reminders-file-changed-is-checked-at-the-start-of-a-turn ()
  "H7: inside the loop no file is looked at."
  (sections-tests-with
    (let* ((gptel-retention-reminders '(file-changed))
           (file (sections-tests-write directory "x.txt" "x")))
      (gptel-retention-reminders-note-tool `(:args (:path ,file)))
      (should-not (sections-tests-keys))
      (sections-tests-touch file)
      (should-not (sections-tests-keys t)))))

(ert-deftest reminders-file-changed-leaves-out-remote-names ()
  "A remote name in an argument, or a remote buffer, opens nothing."
  (sections-tests-with
    (gptel-retention-reminders-note-tool
     '(:args (:path "/ssh:nowhere.invalid:/etc/passwd")))
    (setq default-directory "/ssh:nowhere.invalid:/tmp/")
    (gptel-retention-reminders-note-tool '(:args (:path "/etc/passwd")))

    (should (hash-table-empty-p
             (gptel-retention-sections--state-files
              (gptel-retention-sections--state))))))

(ert-deftest reminders-file-changed-watches-the-context ()
  "Files of gptel's context are watched while the context is sent."
  (sections-tests-with
    (let* ((gptel-retention-reminders '(file-changed))
           (file (sections-tests-write directory "x.txt" "x"))
           (gptel-context (list file))
           (gptel-use-context 'system))
      (should-not (sections-tests-keys))
      (sections-tests-touch file)
      (should (equal (sections-tests-keys)
                     (list (concat "file-changed:" file)))))))


;;; Context use

(ert-deftest reminders-context-use-has-the-highest-step ()
  "The state is the step that is reached; below the first there is none."
  (sections-tests-with
    (let ((gptel-model (make-symbol "small"))
          (gptel-retention-reminders '(context-use))
          (gptel-retention-context-steps '(90 60)))
      (insert (make-string 400 ?x))
      ;; A model of unknown size.
      (should-not (gptel-retention-reminders-context-step))
      (put gptel-model :context-window 1)
      (cl-flet ((at (tokens)
                  (gptel-retention-sections-note-tokens tokens)
                  (plist-get (car (sections-tests-reminders)) :state)))
        (should (equal (mapcar #'at '(599 600 899 900 5000))
                       '(:null "60" "60" "90" "90"))))
      (should (equal (plist-get (car (sections-tests-reminders)) :body)
                     "About 90 % or more of the context window of 1000 \
tokens is in use. Ask for short tool results, and tell the user if the \
task will not fit.")))))

(ert-deftest reminders-context-use-falls-back-to-bytes ()
  "Without a count the bytes last sent count, or else the buffer's."
  (sections-tests-with
    (insert (make-string 400 ?x))
    (should (= (gptel-retention-reminders--used) 100))
    (gptel-retention-sections-note-prepared '(:total 4000))
    (should (= (gptel-retention-reminders--used) 1000))
    (gptel-retention-sections-note-tokens 7)
    (should (= (gptel-retention-reminders--used) 7))))

(provide 'sections-tests)
;;; sections-tests.el ends here
