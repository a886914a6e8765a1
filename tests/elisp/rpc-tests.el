;;; rpc-tests.el --- Talking to the backend  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Each against a real process that follows a script.

;;; Code:

(require 'test-helper)

(defmacro rpc-tests-time (&rest body)
  "Run BODY and return the seconds that it took."
  (declare (indent 0) (debug t))
  `(let ((start (float-time)))
     ,@body
     (- (float-time) start)))

(defun rpc-tests-caught (function)
  "Call FUNCTION and return the error it signals, or nil."
  (condition-case err
      (progn (funcall function) nil)
    (gptel-retention-error err)))

(defun rpc-tests-buffers ()
  "Return the buffers that belong to a backend."
  (cl-remove-if-not (lambda (buffer)
                      (string-match-p "gptel-retention-[0-9]"
                                      (buffer-name buffer)))
                    (buffer-list)))

(ert-deftest rpc-tests-call-returns-result ()
  "A call returns the result; the first one starts the backend."
  (test-helper-with-backend '(("inspect/check" . [(:result (:n 1))]))
    (let ((result (gptel-retention-rpc-call "inspect/check" nil)))
      (should (equal 1 (plist-get result :n)))
      (should (equal '("initialize" "inspect/check") (test-helper-methods)))
      (should (eq 'ready (plist-get (gptel-retention-rpc-status) :state))))))

(ert-deftest rpc-tests-call-is-quick ()
  "A round trip takes a few milliseconds, not a polling interval."
  (test-helper-with-backend nil
    (gptel-retention-rpc-ensure)
    (let ((times (cl-loop repeat 50 collect
                          (rpc-tests-time
                            (gptel-retention-rpc-call "x/y" nil)))))
      (message "round trip p50 %.2f ms, p90 %.2f ms"
               (* 1000 (nth 25 (sort times #'<)))
               (* 1000 (nth 45 (sort times #'<))))
      (should (< (nth 25 (sort times #'<)) 0.01)))))

(ert-deftest rpc-tests-server-error-carries-code ()
  "An error answer signals `gptel-retention-server-error' with its code."
  (test-helper-with-backend
      '(("x/y" . [(:error (:code -32000 :message "no"
                                 :data (:code "resync")))]))
    (let ((err (rpc-tests-caught
                (lambda () (gptel-retention-rpc-call "x/y" nil)))))
      (should (eq 'gptel-retention-server-error (car err)))
      (should (equal "resync" (gptel-retention-error-code err)))
      ;; It is alive and well.
      (should (gptel-retention-rpc-call "x/z" nil)))))

(ert-deftest rpc-tests-large-text-travels-in-file ()
  "P2: a text above 12 KB arrives by a private file, removed afterwards."
  (test-helper-with-backend nil
    (let ((text (apply #'concat (make-list 9000 "aé€\U0001F600"))))
      (gptel-retention-rpc-call
       "x/y" (list :tail (gptel-retention-rpc-text text)))
      (should (equal text (plist-get (plist-get (car (test-helper-log "x/y"))
                                                :params)
                                     :tail)))
      (should-not (directory-files (gptel-retention-rpc-directory) nil
                                   "\\`gptel")))))

(ert-deftest rpc-tests-many-texts-fit-one-frame ()
  "P2: texts that are small each but large together do not make a large frame."
  (test-helper-with-backend nil
    (let* ((text (make-string 11000 ?\"))
           (params (list :tail (gptel-retention-rpc-text text)
                         :head (gptel-retention-rpc-text text)
                         :span (gptel-retention-rpc-text "[]")
                         :sections (vector (list :body text))))
           (fit (gptel-retention-rpc--fit params)))
      (should (< (length (gptel-retention-rpc--encode fit)) (* 16 1024)))
      (gptel-retention-rpc--remove-files fit)

      (gptel-retention-rpc-call "x/y" params)

      (let ((got (plist-get (car (test-helper-log "x/y")) :params)))
        (should (equal text (plist-get got :tail)))
        (should (equal text (plist-get got :head)))
        (should (equal "[]" (plist-get got :span)))))))

(ert-deftest rpc-tests-too-large-is-an-error ()
  "P2: what cannot be handed over is refused, not sent."
  (test-helper-with-backend nil
    (should-error (gptel-retention-rpc-call
                   "x/y" (list :other (make-string 20000 ?a)))
                  :type 'gptel-retention-protocol-error)
    (should-not (test-helper-log "x/y"))))

(ert-deftest rpc-tests-bytes-are-taken-undecoded ()
  "P3: bytes and the string they encode arrive as the same text."
  (test-helper-with-backend nil
    (dolist (text '("aé€" "a"))
      (gptel-retention-rpc-call
       "x/y" (list :tail (gptel-retention-rpc-text
                          (encode-coding-string text 'utf-8)))))
    (should (equal '("aé€" "a")
                   (mapcar (lambda (entry)
                             (plist-get (plist-get entry :params) :tail))
                           (test-helper-log "x/y"))))))

(ert-deftest rpc-tests-odd-bytes-travel-in-a-file ()
  "Bytes that JSON cannot carry are handed over however few they are."
  (dolist (bytes '("\xff" "a\x80" "\xed\xa0\x80" "\xc0\x80" "\xf4\x90\x80\x80"))
    (let ((text (gptel-retention-rpc-text bytes)))
      (should (equal (length bytes) (plist-get text :bytes)))
      (should (equal bytes
                     (with-temp-buffer
                       (set-buffer-multibyte nil)
                       (insert-file-contents-literally (plist-get text :file))
                       (buffer-string))))
      (gptel-retention-rpc--remove-files (list :body text))
      (should-not (file-exists-p (plist-get text :file)))))
  (should (equal "a\r\n\0é😀￾"
                 (gptel-retention-rpc-text "a\r\n\0é😀￾"))))

(ert-deftest rpc-tests-read-text-checks-file ()
  "A handed-over answer is read once; one that was altered is refused."
  (test-helper-with-backend
      '(("x/y" . [(:file (:text "é"))]))
    (let ((value (plist-get (gptel-retention-rpc-call "x/y" nil) :text)))
      (should (equal "é" (gptel-retention-rpc-read-text value)))
      (should-not (file-exists-p (plist-get value :file))))
    (let ((value (plist-get (gptel-retention-rpc-call "x/y" nil) :text)))
      (with-temp-file (plist-get value :file) (insert "xy"))
      (should-error (gptel-retention-rpc-read-text value)
                    :type 'gptel-retention-protocol-error)
      (should-not (file-exists-p (plist-get value :file))))
    (let ((outside (make-temp-file "outside")))
      (should-error (gptel-retention-rpc-read-text
                     (list :file outside :bytes 0))
                    :type 'gptel-retention-protocol-error)
      (should (file-exists-p outside))
      (delete-file outside))))

(ert-deftest rpc-tests-missing-program-is-unavailable ()
  "Z1: a backend that is not installed signals at once, and is told once."
  (test-helper-with-backend nil
    (let ((gptel-retention-command '("no-such-program-for-retention")))
      (should (eq 'gptel-retention-unavailable
                  (car (rpc-tests-caught #'gptel-retention-rpc-ensure))))
      ;; Then it is left alone.
      (should (string-match-p
               "not tried again"
               (error-message-string
                (rpc-tests-caught #'gptel-retention-rpc-ensure)))))))

(ert-deftest rpc-tests-hanging-backend-times-out-and-is-killed ()
  "P2: a backend that does not answer costs the time-out once."
  (test-helper-with-backend '(("x/y" . [(:hang t)]))
    (gptel-retention-rpc-ensure)
    (let* ((gptel-retention-timeout 0.4)
           (process (gptel-retention-rpc--server-process
                     gptel-retention-rpc--server))
           err
           (first (rpc-tests-time
                    (setq err (rpc-tests-caught
                               (lambda ()
                                 (gptel-retention-rpc-call "x/y" nil)))))))
      (should (eq 'gptel-retention-timeout (car err)))
      (should (< 0.3 first 0.7))
      (should-not (process-live-p process))
      (should (< (rpc-tests-time
                   (setq err (rpc-tests-caught
                              (lambda ()
                                (gptel-retention-rpc-call "x/y" nil)))))
                 0.1))
      (should (eq 'gptel-retention-unavailable (car err)))
      (should (eq 'paused (plist-get (gptel-retention-rpc-status) :state))))))

(ert-deftest rpc-tests-pause-doubles ()
  "P2: the pause is 5 s, doubling up to 5 min; an answer resets it."
  (let ((gptel-retention-rpc--failures 0)
        (gptel-retention-rpc--pause-end 0))
    (should (equal '(5 10 20 40 80 160 300 300)
                   (cl-loop repeat 8
                            do (gptel-retention-rpc--pause)
                            collect (round (- gptel-retention-rpc--pause-end
                                              (float-time))))))))

(ert-deftest rpc-tests-backend-that-does-not-read-does-not-freeze ()
  "P2: a backend that stops reading freezes Emacs for one time-out."
  (test-helper-with-backend '(("x/busy" . [(:delay 60)]))
    (gptel-retention-rpc-ensure)
    (let ((gptel-retention-timeout 0.4) err)
      (gptel-retention-rpc-send "x/busy" nil #'ignore)
      ;; Fire-and-forget requests fill the pipe until it blocks.
      (should (< (rpc-tests-time
                   (setq err
                         (rpc-tests-caught
                          (lambda ()
                            (dotimes (_ 200)
                              (gptel-retention-rpc-send
                               "x/y" (list :tail (make-string 12000 ?a))
                               #'ignore))))))
                 0.9))
      (should (eq 'gptel-retention-timeout (car err)))
      (should-not (gptel-retention-rpc-ready-p)))))

(ert-deftest rpc-tests-stopped-backend-does-not-freeze ()
  "P2: a backend that was stopped by a signal is killed within the time-out."
  (test-helper-with-backend '(("x/stop" . [(:stop t)]))
    (gptel-retention-rpc-ensure)
    (let ((process (gptel-retention-rpc--server-process
                    gptel-retention-rpc--server))
          (gptel-retention-timeout 0.4)
          err)
      (should (< (rpc-tests-time
                   (setq err (rpc-tests-caught
                              (lambda ()
                                (gptel-retention-rpc-call "x/stop" nil)))))
                 0.7))
      (should (memq (car err) '(gptel-retention-timeout
                                gptel-retention-unavailable)))
      (should-not (process-live-p process)))))

(ert-deftest rpc-tests-sending-to-stopped-backend-is-unavailable ()
  "P2: so is one that was stopped between two requests."
  (test-helper-with-backend nil
    (gptel-retention-rpc-ensure)
    (let ((process (gptel-retention-rpc--server-process
                    gptel-retention-rpc--server)))
      (signal-process process 'STOP)
      (test-helper-wait 2 "the stop"
                        (lambda () (eq 'stop (process-status process))))
      (should (eq 'gptel-retention-unavailable
                  (car (rpc-tests-caught
                        (lambda () (gptel-retention-rpc-call "x/y" nil))))))
      (should-not (process-live-p process)))))

(ert-deftest rpc-tests-garbage-times-out ()
  "Z1: garbage instead of an answer, framed or not, is a time-out, silently."
  (dolist (garbage (list (make-string 500 ?x) "\r\n\r\n{"
                         "Content-Length: 5\r\n\r\n{nope"))
    (test-helper-with-backend `(("x/y" . [(:garbage ,garbage)]))
      (gptel-retention-rpc-ensure)
      (let ((gptel-retention-timeout 0.3))
        (should (eq 'gptel-retention-timeout
                    (car (rpc-tests-caught
                          (lambda () (gptel-retention-rpc-call "x/y" nil)))))))
      (should-not (get-buffer "*Warnings*")))))

(ert-deftest rpc-tests-dying-backend-is-unavailable ()
  "Z1: a backend that dies in the middle of a request signals at once."
  (test-helper-with-backend '(("x/y" . [(:die t)]))
    (gptel-retention-rpc-ensure)
    (let* (err (took (rpc-tests-time
                       (setq err (rpc-tests-caught
                                  (lambda ()
                                    (gptel-retention-rpc-call "x/y" nil)))))))
      (should (eq 'gptel-retention-unavailable (car err)))
      (should (< took 0.5)))))

(ert-deftest rpc-tests-killed-backend-starts-again ()
  "L3: a backend that was killed between requests starts again at once."
  (test-helper-with-backend nil
    (let ((generation (gptel-retention-rpc-ensure)))
      (signal-process (gptel-retention-rpc--server-process
                       gptel-retention-rpc--server)
                      'KILL)
      (test-helper-wait 2 "the end of the backend"
                        (lambda () (not (gptel-retention-rpc-ready-p))))
      (should (gptel-retention-rpc-call "x/y" nil))
      (should (> (gptel-retention-rpc-generation) generation)))))

(ert-deftest rpc-tests-other-protocol-is-refused ()
  "A backend of another protocol, or that does not know `initialize'."
  (dolist (step '((:result (:protocol 99))
                  (:error (:code -32601 :message "unknown method"))
                  (:error (:code -32000 :message "too old"
                                 :data (:code "unsupported_protocol")))))
    (test-helper-with-backend `(("initialize" . [,step]))
      (let ((err (rpc-tests-caught #'gptel-retention-rpc-ensure)))
        (should (memq (car err) '(gptel-retention-protocol-error
                                  gptel-retention-server-error)))
        (should-not (gptel-retention-rpc-ready-p))))))

(ert-deftest rpc-tests-slow-start-has-its-own-time ()
  "H8: the first contact may take the start time-out."
  (test-helper-with-backend '(("initialize" . [(:delay 0.6)]))
    (let ((gptel-retention-timeout 0.3))
      (should (gptel-retention-rpc-call "x/y" nil)))))

(ert-deftest rpc-tests-start-that-hangs-times-out ()
  "H8: a start that hangs costs the start time-out."
  (test-helper-with-backend '(("initialize" . [(:hang t)]))
    (let ((gptel-retention-start-timeout 0.5) err)
      (should (< (rpc-tests-time
                   (setq err (rpc-tests-caught #'gptel-retention-rpc-ensure)))
                 1.0))
      (should (eq 'gptel-retention-timeout (car err))))))

(ert-deftest rpc-tests-nested-calls-share-one-deadline ()
  "P2: a call inside another one's wait ends with the outer deadline."
  (test-helper-with-backend '(("x/y" . [(:hang t)]))
    (gptel-retention-rpc-ensure)
    (let ((gptel-retention-timeout 0.6) inner)
      (run-at-time 0.3 nil
                   (lambda ()
                     (setq inner
                           (rpc-tests-caught
                            (lambda ()
                              (gptel-retention-rpc-call "x/y" nil 5))))))
      (should (< (rpc-tests-time
                   (rpc-tests-caught
                    (lambda () (gptel-retention-rpc-call "x/y" nil))))
                 0.9))
      (should inner))))

(ert-deftest rpc-tests-send-does-not-wait ()
  "A request that nobody waits for returns at once; its callback comes later."
  (test-helper-with-backend '(("x/y" . [(:delay 0.2 :result (:n 3))]))
    (gptel-retention-rpc-ensure)
    (let (got)
      (should (< (rpc-tests-time
                   (gptel-retention-rpc-send
                    "x/y" nil
                    (lambda (result err) (setq got (list result err)))))
                 0.1))
      (test-helper-wait 2 "the callback" (lambda () got))
      (should (equal 3 (plist-get (car got) :n)))
      (should-not (cadr got)))))

(ert-deftest rpc-tests-nothing-is-left-of-what-is-not-sent ()
  "Without a ready backend nothing is sent, and its files go."
  (let ((text (gptel-retention-rpc-text (make-string 20000 ?a))))
    (should (file-exists-p (plist-get text :file)))
    (should-not (gptel-retention-rpc-send "x/y" (list :body text)))
    (should-not (file-exists-p (plist-get text :file)))))

(ert-deftest rpc-tests-capabilities-are-known-once-it-is-ready ()
  "What the backend answers is what it says, once it has said it."
  (should-not (gptel-retention-rpc-capable-p "x/y"))
  (test-helper-with-backend
      '(("initialize" . [(:result (:capabilities ["a/b" "x/y"]))]))
    (gptel-retention-rpc-ensure)
    (should (gptel-retention-rpc-capable-p "x/y"))
    (should-not (gptel-retention-rpc-capable-p "x/z"))))

(ert-deftest rpc-tests-quit-passes-through ()
  "P1: \\`C-g' while waiting quits; the next call works."
  (test-helper-with-backend '(("x/y" . [(:delay 0.4) (:result (:n 2))]))
    (gptel-retention-rpc-ensure)
    (run-at-time 0.1 nil (lambda () (setq quit-flag t)))
    (should (eq 'quit (condition-case nil
                          (gptel-retention-rpc-call "x/y" nil)
                        (quit 'quit))))
    (should (equal 2 (plist-get (gptel-retention-rpc-call "x/y" nil) :n)))))

(ert-deftest rpc-tests-shutdown-is-polite ()
  "Shutdown asks first, and leaves no process, buffer or directory."
  (test-helper-with-backend nil
    (gptel-retention-rpc-ensure)
    (let ((directory (gptel-retention-rpc-directory)))
      (should (equal #o700 (file-modes directory)))
      (gptel-retention-rpc-shutdown)
      (should (equal '("initialize" "shutdown") (test-helper-methods)))
      (should-not (file-exists-p directory))
      (test-helper-wait 2 "no buffers"
                        (lambda () (null (rpc-tests-buffers)))))))

(ert-deftest rpc-tests-stale-directories-are-swept ()
  "P2: the directory of a dead Emacs goes; those in use or of others stay."
  (let* ((parent (make-temp-file "retention-parent" t))
         (name (lambda (pid) (expand-file-name
                              (format "gptel-retention-%d-%d-abc123"
                                      (user-uid) pid)
                              parent)))
         (dead (funcall name 999999999))
         (own (funcall name (emacs-pid)))
         (recent (funcall name 999999998))
         (link (funcall name 999999997)))
    (unwind-protect
        (progn
          (mapc #'make-directory (list dead own recent))
          (make-symbolic-link "/nowhere" link)
          (with-temp-file (expand-file-name "f" dead) (insert "x"))
          (dolist (directory (list dead own))
            (set-file-times directory (time-subtract nil 3600)))

          (gptel-retention-rpc--sweep parent)

          (should-not (file-exists-p dead))
          (should (file-exists-p own))
          (should (file-exists-p recent))
          (should (file-symlink-p link)))
      (delete-directory parent t))))

(ert-deftest rpc-tests-clean-string-replaces-what-json-refuses ()
  "S8: raw bytes and lone surrogates become U+FFFD."
  (should (equal "aé\uFFFD\uFFFDb"
                 (gptel-retention-rpc-clean-string
                  (concat "aé" (string #x3FFF80 #xD800) "b"))))
  (should (equal "é" (gptel-retention-rpc-clean-string "\303\251"))))

(ert-deftest rpc-tests-report-says-each-cause-once ()
  "Z1: one message per cause."
  (let ((gptel-retention-rpc--reported nil))
    (should (equal '("[retention] a 1" "[retention] b")
                   (test-helper-messages
                     (gptel-retention-rpc-report 'a "a %d" 1)
                     (gptel-retention-rpc-report 'a "a %d" 2)
                     (gptel-retention-rpc-report 'b "b"))))))

(provide 'rpc-tests)
;;; rpc-tests.el ends here
