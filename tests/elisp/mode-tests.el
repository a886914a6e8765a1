;;; mode-tests.el --- The mode and its commands  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The mode with the real gptel, a provider on the loopback interface and the
;; scripted backend; the installation with a shell script in place of Python.

;;; Code:

(require 'test-helper)
(require 'turn-tests)
(require 'compile)
(require 'ert-x)
(require 'gptel-retention)

(defmacro mode-tests-with-chat (&rest body)
  "Run BODY in a chat buffer where `gptel-retention-mode' is on."
  (declare (indent 0) (debug t))
  `(let ((gptel-use-context nil)
         (gptel-use-curl t)
         (gptel-backend turn-tests-backend)
         (gptel-model 'm))
     (with-temp-buffer
       (text-mode)
       (setq-local gptel-track-response t)
       (unwind-protect
           (progn (gptel-retention-mode)
                  ,@body)
         (gptel-retention-mode -1)))))

(defmacro mode-tests-with-environment (&rest body)
  "Run BODY with a private environment in a new directory, `directory'."
  (declare (indent 0) (debug t))
  `(ert-with-temp-directory directory
     (let ((gptel-retention-environment-directory
            (expand-file-name "an environment/" directory))
           (gptel-retention-command
            (eval (car (get 'gptel-retention-command 'standard-value)) t)))
       ,@body)))

(defun mode-tests-script (file &rest lines)
  "Write the shell script FILE of LINES and return FILE."
  (make-directory (file-name-directory file) t)
  (write-region (string-join (cons "#!/bin/sh" lines) "\n") nil file
                nil 'silent)
  (set-file-modes file #o755)
  file)


;;; Turning it on and off

(ert-deftest mode-off-leaves-gptel-as-it-was ()
  "With the mode off in the last buffer nothing of it remains."
  (test-helper-with-backend nil
    (let ((transforms gptel-prompt-transform-functions))
      (with-temp-buffer
        (let ((before (buffer-local-variables)))
          (gptel-retention-mode)
          (should (memq #'gptel-retention-sections-note-preset
                        gptel-prompt-transform-functions))
          (gptel-retention-mode -1)

          (should (equal gptel-prompt-transform-functions transforms))
          (should-not (advice-member-p #'gptel-retention-turn--around-request
                                       'gptel-request))
          (pcase-dolist (`(,hook . ,_) gptel-retention--hooks)
            (should-not (local-variable-p hook)))
          (should-not (cl-set-difference
                       (delq nil (mapcar #'car-safe (buffer-local-variables)))
                       (append '( gptel-retention-mode
                                  gptel-retention-sections--state
                                  gptel-retention-inspect--indicator
                                  gptel-retention-turn--conversation
                                  gptel-retention-id)
                               (mapcar #'car-safe before))))
          (should-not gptel-retention-sections--state))))))

(ert-deftest mode-stays-on-in-another-buffer ()
  "Turning it off in one buffer leaves the others alone."
  (test-helper-with-backend nil
    (with-temp-buffer
      (gptel-retention-mode)
      (with-temp-buffer
        (gptel-retention-mode)
        (gptel-retention-mode -1))

      (should (memq #'gptel-retention-sections-note-preset
                    gptel-prompt-transform-functions))
      (should (advice-member-p #'gptel-retention-turn--around-request
                               'gptel-request))
      (gptel-retention-mode -1))))

(ert-deftest mode-global-follows-gptel-mode ()
  "H8: the global mode is on exactly where `gptel-mode' is."
  (test-helper-with-backend nil
    (let ((gptel-backend turn-tests-backend)
          (gptel-model 'm))
      (with-temp-buffer
        (text-mode)
        (gptel-mode)
        (unwind-protect
            (progn
              (gptel-retention-global-mode)
              (should gptel-retention-mode)
              (with-temp-buffer
                (text-mode)
                (should-not gptel-retention-mode)
                (gptel-mode)
                (should gptel-retention-mode)
                (gptel-mode -1)
                (should-not gptel-retention-mode)))
          (gptel-retention-global-mode -1))

        (should-not gptel-retention-mode)
        (should-not (memq #'gptel-retention--follow gptel-mode-hook))))))


;;; A request

(ert-deftest mode-request-carries-sections-and-reminders ()
  "A turn with the real gptel carries what is selected in its buffer.
A file that its tool read is noted, and reported when it changed."
  (ert-with-temp-directory directory
    (let ((file (expand-file-name "notes.txt" directory)))
      (write-region "x" nil file nil 'silent)
      (test-helper-with-backend
          '(("request/prepare"
             . [(:result (:sections [(:name "hello" :reason "new")]
                          :reused 0 :total 100))
                (:result (:reused 99 :total 100))
                (:result (:reminders ["file-changed"] :reused 50
                          :total 100))]))
        (turn-tests-with-provider `[(:calls [["read" (:p ,file)]])
                                    (:text "Read it.") (:text "Again.")]
          (mode-tests-with-chat
            (let ((gptel-retention-section-definitions
                   gptel-retention-section-definitions)
                  (gptel-tools (list (turn-tests-tool)))
                  (gptel-confirm-tool-calls nil))
              (gptel-retention-define-section 'hello :body (lambda () "Hi."))
              (setq-local gptel-retention-sections '(hello)
                          gptel-retention-reminders '(file-changed))
              (should (equal (substring-no-properties
                              (gptel-retention-inspect-indicator))
                             " R"))
              (insert "read it")
              (turn-tests-send)
              (should (equal (substring-no-properties
                              (gptel-retention-inspect-indicator))
                             " R 99%%"))
              (set-file-times file (time-add nil 10))
              (goto-char (point-max))
              (insert "\n\nand now?")
              (turn-tests-send)

              (should (equal (substring-no-properties
                              (gptel-retention-inspect-indicator))
                             " R:0+1 50%%"))
              (let ((params (turn-tests-params)))
                (should (equal
                         (mapcar (lambda (each) (plist-get each :sections))
                                 params)
                         (make-list 3 [( :name "hello" :title "Hello"
                                         :kind "fact" :body "Hi."
                                         :error :json-false)])))
                (should (equal
                         (mapcar
                          (lambda (each)
                            (mapcar (lambda (reminder)
                                      (plist-get reminder :key))
                                    (plist-get each :reminders)))
                          params)
                         `(nil nil (,(concat "file-changed:"
                                             file)))))))))))))

(ert-deftest mode-indicator-shows-a-failure ()
  "Z1: a request that went out unchanged is marked; the next is not."
  (test-helper-with-backend
      '(("request/prepare"
         . [(:error (:code -32000 :message "full" :data (:code "store_full")))
            (:result (:total 10 :reused 9))]))
    (turn-tests-with-provider [(:text "One.") (:text "Two.")]
      (mode-tests-with-chat
        (let (said)
          (insert "one")
          (setq said (test-helper-messages (turn-tests-send)))
          (should (equal said '("[retention] The request goes out as gptel \
made it: Retention backend refused: \"store_full\", \"full\"")))
          (should (equal (substring-no-properties
                          (gptel-retention-inspect-indicator))
                         " R!"))
          (goto-char (point-max))
          (insert "\n\ntwo")
          (turn-tests-send)

          (should (equal (substring-no-properties
                          (gptel-retention-inspect-indicator))
                         " R 90%%")))))))

(ert-deftest mode-indicator-ignores-detached-requests ()
  "A request with a selection of its own is not this conversation's."
  (test-helper-with-backend nil
    (mode-tests-with-chat
      (run-hook-with-args 'gptel-retention-after-prepare-functions
                          (list :total 10 :reused 5))

      (should (equal (substring-no-properties
                      (gptel-retention-inspect-indicator))
                     " R")))))


;;; Commands

(ert-deftest mode-set-goal-selects-its-sections ()
  "A goal selects its two sections in this buffer; no goal takes it back."
  (with-temp-buffer
    (let ((global gptel-retention-sections))
      (gptel-retention-set-goal " Port it. ")
      (should (equal gptel-retention-goal "Port it."))
      (should (equal gptel-retention-sections
                     (append global '(goal-policy goal-facts))))
      (gptel-retention-set-goal "Other.")
      (should (equal gptel-retention-sections
                     (append global '(goal-policy goal-facts))))
      (gptel-retention-set-goal "")
      (should-not gptel-retention-goal)
      (should (equal (default-value 'gptel-retention-sections) global)))))

(ert-deftest mode-forget-asks-first ()
  "Z2: what is stored goes only when the user says so."
  (test-helper-with-backend nil
    (with-temp-buffer
      (should-error (gptel-retention-forget) :type 'user-error)
      (setq gptel-retention-id "abc")
      (cl-letf (((symbol-function 'yes-or-no-p) #'ignore))
        (gptel-retention-forget))
      (should-not (member "conversation/forget" (test-helper-methods)))
      (cl-letf (((symbol-function 'yes-or-no-p) #'always))
        (should (equal (test-helper-messages (gptel-retention-forget))
                       '("[retention] The conversation is forgotten"))))
      (should (equal (turn-tests-params "conversation/forget")
                     '((:id "abc")))))))

(ert-deftest mode-restart-starts-another-backend ()
  "A restart forgets failures and greets a new process."
  (test-helper-with-backend nil
    (let ((first (gptel-retention-rpc-ensure)))
      (test-helper-messages (gptel-retention-restart-backend))

      (should (= (1+ first) (gptel-retention-rpc-generation)))
      (should (gptel-retention-rpc-ready-p)))))

(ert-deftest mode-restart-says-what-is-wrong ()
  "A backend that cannot start is the user's to see."
  (let ((gptel-retention-command '("no-such-program-for-retention")))
    (unwind-protect
        (should-error (gptel-retention-restart-backend) :type 'user-error)
      (gptel-retention-rpc-retry))))


;;; Installation

(ert-deftest mode-backend-is-the-private-one-if-there-is-one ()
  "The private program is used unless the user has set a command."
  (mode-tests-with-environment
    (let ((standard gptel-retention-command))
      (gptel-retention--choose-backend)
      (should (equal gptel-retention-command standard))
      (let ((program (mode-tests-script
                      (gptel-retention--environment-program "retention"))))
        (setq gptel-retention-command '("mine"))
        (gptel-retention--choose-backend)
        (should (equal gptel-retention-command '("mine")))
        (setq gptel-retention-command standard)
        (gptel-retention--choose-backend)

        (should (equal gptel-retention-command (list program "serve")))))))

(ert-deftest mode-install-source-is-the-checkout ()
  "The backend that this file came with is installed."
  (should (file-equal-p (gptel-retention--backend-source)
                        (expand-file-name "../.."
                                          test-helper-directory))))

(defun mode-tests-install ()
  "Install the backend, wait for the end and return the messages."
  (let ((inhibit-message t) messages ended)
    (add-hook 'compilation-finish-functions
              (lambda (&rest _) (setq ended t)))
    (setq messages
          (test-helper-messages
            (gptel-retention-install-backend)
            (test-helper-wait 10 "the installation" (lambda () ended))))
    (kill-buffer "*retention install*")
    messages))

(ert-deftest mode-install-makes-an-environment-and-uses-it ()
  "What was installed is what starts next."
  (mode-tests-with-environment
    (let* ((log (expand-file-name "log" directory))
           (compilation-finish-functions nil)
           (gptel-retention-python
            (mode-tests-script
             (expand-file-name "python" directory)
             (format "echo \"$*\" >> %s" (shell-quote-argument log))
             "case $2 in"
             "venv) mkdir -p \"$3/bin\"; cp \"$0\" \"$3/bin/python\" ;;"
             "pip) cp \"$0\" \"${0%/*}/retention\" ;;"
             "esac"))
           (said (mode-tests-install))
           (program (gptel-retention--environment-program "retention")))
      (should (equal gptel-retention-command (list program "serve")))
      (should (equal said (list (format "[retention] The backend is \
installed: %s serve" program))))
      (should (equal (with-temp-buffer
                       (insert-file-contents log)
                       (buffer-string))
                     (format "-m venv %s\n-m pip --no-color \
--disable-pip-version-check install --progress-bar off --upgrade %s\n"
                             (directory-file-name
                              gptel-retention-environment-directory)
                             (gptel-retention--backend-source)))))))

(ert-deftest mode-install-that-fails-changes-nothing ()
  "A failed installation is told and leaves the command as it was."
  (mode-tests-with-environment
    (let* ((standard gptel-retention-command)
           (compilation-finish-functions nil)
           (gptel-retention-python
            (mode-tests-script (expand-file-name "python" directory)
                               "exit 3")))
      (should (equal (mode-tests-install)
                     '("[retention] The backend was not installed, see \
*retention install*")))
      (should (equal gptel-retention-command standard)))))

(ert-deftest mode-install-needs-python ()
  "Without the program nothing is made."
  (mode-tests-with-environment
    (let ((gptel-retention-python "no-such-python-for-retention"))
      (should-error (gptel-retention-install-backend) :type 'user-error)
      (should-not (file-exists-p gptel-retention-environment-directory)))))

;;; The guide

(defun mode-tests-guide ()
  "Return the text of docs/emacs.md."
  (with-temp-buffer
    (insert-file-contents
     (expand-file-name "../../docs/emacs.md" test-helper-directory))
    (buffer-string)))

(ert-deftest mode-guide-names-every-option-and-command ()
  "What a user can set or call is in the guide."
  (let ((guide (mode-tests-guide))
        missing)
    (mapatoms
     (lambda (symbol)
       (let ((name (symbol-name symbol)))
         (when (and (string-prefix-p "gptel-retention-" name)
                    (not (string-search "--" name))
                    (not (string-suffix-p "-mode-hook" name))
                    (not (string-search "inspect-mode" name))
                    (or (custom-variable-p symbol)
                        (commandp symbol))
                    (not (string-search (format "`%s`" name) guide)))
           (push symbol missing)))))

    (should-not missing)))

(ert-deftest mode-guide-has-the-defaults ()
  "Each section and reminder has a row with its kind and its default."
  (let ((guide (mode-tests-guide)))
    (pcase-dolist (`(,name . ,section) gptel-retention-section-definitions)
      (should
       (string-search
        (format "| `%s` | %s%s | %s |" name
                (gptel-retention-section-kind section)
                (if (gptel-retention-section-live section) ", live" "")
                (if (memq name (default-value 'gptel-retention-sections))
                    "on" "off"))
        guide)))
    (pcase-dolist (`(,name . ,_) gptel-retention-reminder-definitions)
      (should
       (string-search
        (format "| `%s` | %s |" name
                (if (memq name (default-value 'gptel-retention-reminders))
                    "on" "off"))
        guide)))))

(provide 'mode-tests)
;;; mode-tests.el ends here
