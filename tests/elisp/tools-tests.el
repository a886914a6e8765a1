;;; tools-tests.el --- Outputs of tools  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Real gptel, a provider on the loopback interface, the scripted backend.
;; The tool `make' returns what the test says, for each call in turn.

;;; Code:

(require 'test-helper)
(require 'turn-tests)
(require 'response-tests)
(require 'ert-x)
(require 'hex-util)
(require 'gptel-retention)

(defvar tools-tests-results nil
  "What the tool of the tests returns, one for each call.")

(defun tools-tests-tool ()
  "Return a tool that returns the next of `tools-tests-results'."
  (gptel-make-tool :name "make" :description "Make." :include t
                   :function (lambda (_p) (pop tools-tests-results))
                   :args '((:name "p" :type string :description "Target."))))

(defconst tools-tests-call [(:calls [["make" (:p "all")]]) (:text "Done.")]
  "Answers of a provider that calls the tool once.")

(defun tools-tests-script (&rest steps)
  "Return a script of a backend that keeps outputs, with STEPS."
  `(("initialize"
     . [(:result (:capabilities ["response/record" "output/save"
                                 "output/list" "output/recall"]))])
    ,@steps))

(defmacro tools-tests-with (answers steps &rest body)
  "Run BODY in a chat with a provider that gives ANSWERS.
STEPS are what the backend is scripted to do, beside keeping outputs."
  (declare (indent 2) (debug t))
  `(turn-tests-with-provider ,answers
     (test-helper-with-backend (apply #'tools-tests-script ,steps)
       (let ((gptel-use-context nil)
             (gptel-use-curl t)
             (gptel-backend turn-tests-backend)
             (gptel-model 'm)
             (gptel-retention-sections nil)
             (gptel-retention-reminders nil)
             (gptel-retention-output-timeout 5)
             (gptel-confirm-tool-calls nil)
             (gptel-use-tools t)
             (gptel-tools (list (tools-tests-tool))))
         (with-temp-buffer
           (text-mode)
           (setq-local gptel-track-response t)
           (unwind-protect
               (progn (gptel-retention-mode)
                      (gptel-retention-rpc-ensure)
                      ,@body)
             (gptel-retention-mode -1)))))))

(defun tools-tests-send (text &rest results)
  "Send TEXT as a prompt; RESULTS are what the tool returns."
  (setq tools-tests-results results)
  (goto-char (point-max))
  (insert "\n\n" text)
  (turn-tests-send))

(defun tools-tests-requests ()
  "Return the requests that the provider got, plists, first first."
  (with-temp-buffer
    (insert-file-contents turn-tests-bodies)
    (let (all)
      (while (not (eobp))
        (push (json-parse-buffer :object-type 'plist) all)
        (skip-chars-forward "\n"))
      (nreverse all))))

(defun tools-tests-sent (&optional request)
  "Return the results of tools in REQUEST, by default the last one."
  (cl-loop for message across (plist-get (or request
                                             (car (last
                                                   (tools-tests-requests))))
                                         :messages)
           when (equal (plist-get message :role) "tool")
           collect (plist-get message :content)))

(defun tools-tests-names (request)
  "Return the names of the tools in REQUEST."
  (mapcar (lambda (tool) (plist-get (plist-get tool :function) :name))
          (plist-get request :tools)))

(defun tools-tests-buttons ()
  "Return what the buttons in this buffer show."
  (mapcar (lambda (overlay) (overlay-get overlay 'display))
          (sort (seq-filter (lambda (overlay) (overlay-get overlay 'output))
                            (overlays-in (point-min) (point-max)))
                (lambda (a b) (< (overlay-start a) (overlay-start b))))))

(defun tools-tests-saved ()
  "Return the parameters of each `output/save'."
  (turn-tests-params "output/save"))

(defun tools-tests-bytes (params)
  "Return the body in PARAMS, the bytes that the backend read."
  (decode-hex-string (plist-get params :body)))

(defun tools-tests-answer (text &optional id)
  "Return a step that sends TEXT as the excerpt of output ID."
  (list :result (list :id (or id "o1f") :text text :bytes 831488 :shown 7
                      :strategy "segments")))

(defun tools-tests-long (&optional size)
  "Return a text of SIZE characters (default 30,000) in lines."
  (let ((line (concat (make-string 59 ?é) "\n")))
    (substring (apply #'concat (make-list (1+ (/ (or size 30000) 60)) line))
               0 (or size 30000))))


;;; The hand-over

(ert-deftest tools-large-result-is-replaced ()
  "O1, O9: the backend gets all of it, the model and the buffer its excerpt."
  (dolist (mode '(text-mode org-mode markdown-mode))
    (dolist (stream '(t nil))
      (ert-info ((format "%s, stream: %s" mode stream))
        (tools-tests-with tools-tests-call
            `(("output/save" . [,(tools-tests-answer "EXCERPT")]))
          (funcall mode)
          (setq-local gptel-track-response t
                      gptel-stream stream)
          (gptel-retention-mode)
          (tools-tests-send "Build it." (tools-tests-long))

          (should (equal '("EXCERPT") (tools-tests-sent)))
          (should (string-search "\n\nEXCERPT\n" (buffer-string)))
          (should-not (string-search "ééé" (buffer-string)))
          (should-not (string-search "whole output" (buffer-string)))
          (should (equal (list (concat (if (eq mode 'org-mode)
                                           "#+end_tool" "```")
                                       " [whole output o1f, 812 kB]"))
                         (tools-tests-buttons)))
          (let ((params (car (tools-tests-saved))))
            (should (equal (encode-coding-string (tools-tests-long) 'utf-8)
                           (tools-tests-bytes params)))
            (should (equal '("0123456789abcdef0123456789abcdef" "make"
                             "{\"p\":\"all\"}" "Build it."
                             (:tail 12000 :cap 16000))
                           (mapcar (lambda (key) (plist-get params key))
                                   '(:conversation :tool :call :task
                                                   :limits))))))))))

(ert-deftest tools-small-results-are-left-alone ()
  "O1: 12,000 characters are left alone, one more is not, nor a long line."
  (pcase-dolist (`(,result . ,count)
                 `((,(tools-tests-long 12000) . 0)
                   (,(tools-tests-long 12001) . 1)
                   (,(make-string 4000 ?x) . 0)
                   (,(concat "a\n" (make-string 4001 ?x) "\nb") . 1)))
    (tools-tests-with tools-tests-call nil
      (tools-tests-send "Go." result)
      (should (= count (length (tools-tests-saved))))
      ;; The backend may answer that it is to be sent as it is.
      (should (equal (list result) (tools-tests-sent)))
      (should-not (tools-tests-buttons)))))

(ert-deftest tools-what-json-cannot-carry ()
  "S8: its exact bytes are kept, and what is sent of it is the same each time."
  (pcase-dolist
      (`(,result ,bytes ,sent)
       `((,(concat "x" (string #x3FFF80 #x3FFFFF) "é") "x\x80\xff\xc3\xa9"
          "x\uFFFD\uFFFDé")
         ("x\200\377\303\251" "x\200\377\303\251" "x\uFFFD\uFFFDé")
         ("\303\251t\303\251" "\303\251t\303\251" "été")))
    (dolist (how '(keep off missing))
      (ert-info ((format "%S, %s" result how))
        (tools-tests-with tools-tests-call
            (and (eq how 'missing)
                 '(("output/save" . [(:die t)])))
          (setq-local gptel-retention-keep-outputs (not (eq how 'off)))
          (tools-tests-send "Go." result)
          (should (equal (list sent) (tools-tests-sent)))
          (unless (eq how 'off)
            (should (equal (list (string-to-unibyte bytes))
                           (mapcar #'tools-tests-bytes
                                   (tools-tests-saved))))))))))

(ert-deftest tools-kept-bytes-have-a-button ()
  "What was made fit for JSON is shown in full by its button."
  (tools-tests-with tools-tests-call
      '(("output/save" . [(:result (:id "o2" :bytes 3))]))
    (tools-tests-send "Go." "x\200y")
    (should (equal '("x\uFFFDy") (tools-tests-sent)))
    (should (equal '("``` [whole output o2, 3 B]") (tools-tests-buttons)))))

(ert-deftest tools-excerpt-may-come-in-a-file ()
  "P2: an excerpt that is too large for a frame is read from its file."
  (let ((text (make-string 15000 ?ü)))
    (tools-tests-with tools-tests-call
        `(("output/save" . [(:result (:id "o1" :bytes 30000)
                                     :file (:text_file ,text))]))
      (tools-tests-send "Go." (tools-tests-long))
      (should (equal (list text) (tools-tests-sent)))
      (should-not (directory-files (gptel-retention-rpc-directory) nil
                                   "\\`gptel")))))

(ert-deftest tools-trouble-lets-the-original-pass ()
  "O1: with an error, no answer in time or no backend the original is sent."
  (pcase-dolist (`(,what . ,steps)
                 '((error ("output/save"
                           . [(:error (:code -32000 :message "full"
                                             :data (:code "store_full")))]))
                   (hang ("output/save" . [(:hang t)]))
                   (late ("output/save" . [(:delay 0.7 :result (:text "L"))]))
                   (die ("output/save" . [(:die t)]))
                   (garbage ("output/save" . [(:garbage "nonsense")]))
                   (unable ("initialize"
                            . [(:result (:capabilities []))]))))
    (ert-info ((symbol-name what))
      (tools-tests-with tools-tests-call steps
        (when (eq what 'unable)
          (gptel-retention-rpc-shutdown)
          (test-helper-write-script steps)
          (gptel-retention-rpc-ensure))
        (setq gptel-retention-output-timeout 0.4)
        (tools-tests-send "Go." (tools-tests-long))
        (should (equal (list (tools-tests-long)) (tools-tests-sent)))
        (should-not (tools-tests-buttons))
        (accept-process-output nil 0.5) ; for what comes late
        (should (= 2 (length (tools-tests-requests))))))))

(ert-deftest tools-late-answer-changes-nothing ()
  "A result is processed once, when time is up or when there is an answer."
  (tools-tests-with tools-tests-call
      '(("output/save" . [(:delay 0.4 :result (:id "o1" :text "T"))]))
    (let ((fsm (gptel-make-fsm)) processed)
      (setf (gptel-fsm-info fsm) (list :buffer (current-buffer))
            (gptel-fsm-state fsm) 'TOOL)
      (setq gptel-retention-id "abc")
      (pcase-dolist (`(,timeout . ,expected)
                     `((0.2 . (,(tools-tests-long))) (0.6 . ("T"))))
        (setq gptel-retention-output-timeout timeout
              processed nil)
        (gptel-retention-tools--around-result
         (lambda (_fsm _tool _call text) (push text processed))
         fsm (tools-tests-tool) '(:args (:p "all")) (tools-tests-long))
        (let ((end (+ (float-time) 1)))
          (while (< (float-time) end)
            (accept-process-output nil 0.1)))
        (should (equal expected processed))))))

(ert-deftest tools-result-that-is-not-shown-has-no-button ()
  "What looks like the end of a block is not taken for the result's."
  (dolist (shown '(t nil))
    (tools-tests-with [(:text "```\ncode\n```" :calls [["make" (:p "all")]])
                       (:text "Done.")]
        `(("output/save" . [,(tools-tests-answer "EXCERPT")]))
      (let ((gptel-include-tool-results shown))
        (tools-tests-send "Go." (tools-tests-long)))
      (should (equal '("EXCERPT") (tools-tests-sent)))
      (should (= (if shown 1 0) (length (tools-tests-buttons)))))))

(ert-deftest tools-aborted-request-takes-no-result ()
  "A result that comes after the end of the request is dropped."
  (tools-tests-with tools-tests-call
      '(("output/save" . [(:delay 0.4 :result (:id "o1" :text "T"))]))
    (setq tools-tests-results (list (tools-tests-long)))
    (insert "Go.")
    (let ((fsm (gptel-make-fsm)) processed)
      (setf (gptel-fsm-info fsm) (list :buffer (current-buffer)))
      (setq gptel-retention-id "abc")
      (pcase-dolist (`(,state . ,expected) '((TOOL . ("T")) (ABRT . nil)))
        (setq processed nil)
        (gptel-retention-tools--around-result
         (lambda (_fsm _tool _call text) (push text processed))
         fsm (tools-tests-tool) '(:args (:p "all")) (tools-tests-long))
        (should-not processed)
        (setf (gptel-fsm-state fsm) state)
        (accept-process-output nil 0.8)
        (accept-process-output nil 0.1)
        (should (equal expected processed))))))

(ert-deftest tools-equal-calls-keep-their-own-results ()
  "O9: two parallel calls with equal arguments are not mixed up."
  (tools-tests-with [(:calls [["make" (:p "x")] ["make" (:p "x")]])
                     (:text "Done.")]
      `(("output/save" . [(:delay 0.1
                           :result (:id "o1" :text "FIRST" :bytes 30000))
                          ,(tools-tests-answer "SECOND" "o2")]))
    (tools-tests-send "Go." (tools-tests-long) (tools-tests-long 20000))
    ;; gptel runs them in another order than the provider made them in.
    (should (equal '("SECOND" "FIRST")
                   (mapcar #'cadddr (response-tests-shown))))
    (should (equal '("``` [whole output o2, 812 kB]"
                     "``` [whole output o1, 29 kB]")
                   (tools-tests-buttons)))
    (should (equal '(("call_1_1" "FIRST") ("call_1_0" "SECOND"))
                   (mapcar (lambda (message)
                             (list (plist-get message :tool_call_id)
                                   (plist-get message :content)))
                           (seq-filter (lambda (message)
                                         (plist-get message :tool_call_id))
                                       (car (last (turn-tests-bodies)))))))))

(ert-deftest tools-request-of-a-prompt-is-served-too ()
  "O9: results of `gptel-request', as sub-agents make it, are kept as well."
  (tools-tests-with tools-tests-call
      `(("output/save" . [,(tools-tests-answer "EXCERPT")]))
    (setq tools-tests-results (list (tools-tests-long)))
    (let (answer)
      (gptel-request "A task of its own"
        :callback (lambda (response _info)
                    (when (stringp response) (setq answer response))))
      (test-helper-wait 5 "the answer" (lambda () answer)))
    (should (equal '("EXCERPT") (tools-tests-sent)))
    (should (equal "A task of its own"
                   (plist-get (car (tools-tests-saved)) :task)))
    ;; There was no conversation before.
    (should (equal "0123456789abcdef0123456789abcdef" gptel-retention-id))))

(ert-deftest tools-other-buffers-are-left-alone ()
  "Where the mode is off a result passes at once."
  (tools-tests-with tools-tests-call nil
    (with-temp-buffer
      (let ((fsm (gptel-make-fsm)) processed)
        (setf (gptel-fsm-info fsm) (list :buffer (current-buffer)))
        (gptel-retention-tools--around-result
         (lambda (_fsm _tool _call text) (setq processed text))
         fsm (tools-tests-tool) nil (tools-tests-long))
        (should (equal processed (tools-tests-long)))
        (should-not (tools-tests-saved))))))

(ert-deftest tools-what-the-backend-is-told-is-short ()
  "P2: a long prompt and long arguments fit a frame."
  (let ((path (make-string 3000 ?\")))
    (tools-tests-with `[(:calls [["make" (:p ,path)]]) (:text "Done.")]
        `(("output/save" . [,(tools-tests-answer "EXCERPT")]))
      (tools-tests-send (concat (make-string 9000 ?é) "The end.")
                        (tools-tests-long))
      (should (equal '("EXCERPT") (tools-tests-sent)))
      (let ((params (car (tools-tests-saved))))
        (should (= 4000 (length (plist-get params :task))))
        (should (string-suffix-p "éThe end." (plist-get params :task)))
        (should (equal (concat (make-string 199 ?\") "…")
                       (plist-get (json-parse-string (plist-get params :call)
                                                     :object-type 'plist)
                                  :p)))))))

(ert-deftest tools-large-result-does-not-block ()
  "A result of 1 MB blocks Emacs for less than 200 ms."
  (tools-tests-with tools-tests-call nil
    (let ((fsm (gptel-make-fsm))
          (text (tools-tests-long 1000000))
          (start (float-time)))
      (setf (gptel-fsm-info fsm) (list :buffer (current-buffer)))
      (gptel-retention-tools--around-result
       #'ignore fsm (tools-tests-tool) nil text)
      (should (< (- (float-time) start) 0.2)))))


;;; Scores of a model

(defconst tools-tests-question
  (concat "{\"prompt\":\"Which?\",\"schema\":{\"type\":\"object\","
          "\"properties\":{\"segment_1\":{\"type\":\"number\"}},"
          "\"required\":[\"segment_1\"],\"additionalProperties\":false}}")
  "What the backend asks a model.")

(defun tools-tests-asking (text &optional file)
  "Return a step that sends TEXT and asks `tools-tests-question'.
With FILE the question is handed over in a file."
  `(:result (:id "o1" :text ,text :bytes 30000
                 ,@(unless file (list :ask tools-tests-question)))
            ,@(when file
                `(:file (:ask_file ,tools-tests-question)))))

(ert-deftest tools-model-scores ()
  "O5: a model is asked apart from the chat; its answer goes to the backend."
  (dolist (file '(nil t))
    (tools-tests-with
        [(:calls [["make" (:p "all")]])
         (:text "```json\n{\"segment_1\": 0.9}\n```") (:text "Done.")]
        `(("output/save" . [,(tools-tests-asking "FIRST" file)])
          ("output/score" . [,(tools-tests-answer "BETTER" "o1")]))
      (setq-local gptel-retention-output-scorer 'model)
      (tools-tests-send "Go." (tools-tests-long))
      (should (equal '("BETTER") (tools-tests-sent)))
      (should (equal "model" (plist-get (car (tools-tests-saved)) :scorer)))
      (should (equal '((:conversation "0123456789abcdef0123456789abcdef"
                        :id "o1" :answer "{\"segment_1\": 0.9}"
                        :limits (:tail 12000 :cap 16000)))
                     (turn-tests-params "output/score")))
      (let* ((asked (nth 1 (tools-tests-requests)))
             (messages (plist-get asked :messages)))
        (should-not (plist-member asked :tools))
        (should (equal "json_schema" (plist-get (plist-get
                                                 asked :response_format)
                                                :type)))
        (should (= 2 (length messages)))
        (should (equal "Which?" (plist-get (aref messages 1) :content)))
        (should (string-search "\"segment_1\":{\"type\":\"number\"}"
                               (plist-get (aref messages 0) :content))))
      ;; The conversation knows nothing of it.
      (should (= 2 (length (test-helper-log "request/prepare"))))
      (should-not (string-search "segment_1" (buffer-string)))
      (should-not (seq-find (lambda (buffer)
                              (string-search "scorer" (buffer-name buffer)))
                            (buffer-list))))))

(ert-deftest tools-model-that-does-not-score ()
  "O5: without scores in time what the backend chose itself is sent."
  (pcase-dolist (`(,what ,answer . ,steps)
                 '((refuses (:status 400))
                   (talks (:text "I think the first."))
                   (sleeps (:text "{\"segment_1\": 1}" :delay 1.5))
                   (unknown (:text "{\"segment_1\": 1}")
                            ("output/score"
                             . [(:error (:code -32000 :message "?"
                                               :data (:code "invalid")))]))))
    (ert-info ((symbol-name what))
      (tools-tests-with `[(:calls [["make" (:p "all")]]) ,answer
                          (:text "Done.")]
          `(("output/save" . [,(tools-tests-asking "FIRST")]) ,@steps)
        (setq-local gptel-retention-output-scorer 'model)
        (let ((gptel-retention-output-scorer-timeout 0.5))
          (tools-tests-send "Go." (tools-tests-long)))
        (should (equal '("FIRST") (tools-tests-sent)))
        (should (eq (eq what 'unknown)
                    (and (turn-tests-params "output/score") t)))
        (should (equal '("``` [whole output o1, 29 kB]")
                       (tools-tests-buttons)))
        (should-not (seq-find (lambda (entry)
                                (string-search
                                 "scorer"
                                 (buffer-name
                                  (plist-get (gptel-fsm-info (cadr entry))
                                             :buffer))))
                              gptel--request-alist))))))

(ert-deftest tools-another-model-scores ()
  "The scorer may be another model of another backend."
  (tools-tests-with
      [(:calls [["make" (:p "all")]])
       (:text "{\"segment_1\": 0.9}") (:text "Done.")]
      `(("output/save" . [,(tools-tests-asking "FIRST")])
        ("output/score" . [,(tools-tests-answer "BETTER" "o1")]))
    (let ((gptel-retention-output-scorer-model '("S" . small)))
      (gptel-make-openai "S" :key "k" :models '(small) :protocol "http"
                         :host (gptel-backend-host gptel-backend))
      (setq-local gptel-retention-output-scorer 'model)
      (tools-tests-send "Go." (tools-tests-long))
      (should (equal '("m" "small" "m")
                     (mapcar (lambda (request) (plist-get request :model))
                             (tools-tests-requests)))))))


;;; Tools for the model

(ert-deftest tools-own-ones-stand-last-from-the-start ()
  "O7: our tools are those of a conversation from its first request on."
  (tools-tests-with [(:text "1.") (:text "2.") (:text "3.")] nil
    (tools-tests-send "one")
    (setq gptel-retention-output-tools nil)
    (unwind-protect
        (tools-tests-send "two")
      (setq gptel-retention-output-tools t))
    (setq-local gptel-tools nil)
    (tools-tests-send "three")
    (should (equal '(("make" "recall_output" "search_output")
                     ("make" "recall_output" "search_output")
                     nil)
                   (mapcar #'tools-tests-names (tools-tests-requests))))
    (should (equal '("make")
                   (mapcar #'gptel-tool-name (default-value 'gptel-tools))))))

(ert-deftest tools-never-appear-in-a-conversation-without-them ()
  "O7: a conversation whose first request had none of ours gets none."
  (tools-tests-with [(:text "1.") (:text "2.")] nil
    (let ((gptel-retention-output-tools nil))
      (tools-tests-send "one"))
    (tools-tests-send "two")
    (should (equal '(("make") ("make"))
                   (mapcar #'tools-tests-names (tools-tests-requests)))))
  (tools-tests-with [(:text "1.")] nil
    (let ((gptel-retention-keep-outputs nil))
      (tools-tests-send "one"))
    (should (equal '(("make"))
                   (mapcar #'tools-tests-names (tools-tests-requests))))))

(ert-deftest tools-are-remembered-in-the-file ()
  "O7: a reopened conversation has our tools if it had them before."
  (dolist (mode '(text-mode org-mode))
    (dolist (offered '(t nil))
      (ert-info ((format "%s, offered: %s" mode offered))
        (tools-tests-with [(:text "1.") (:text "2.")] nil
          (ert-with-temp-file file
            (let ((gptel-retention-output-tools offered)
                  (names (if offered
                             '("make" "recall_output" "search_output")
                           '("make")))
                  (enable-local-variables :all)
                  (gptel-default-mode mode))
              (dolist (text '("one" "two"))
                (with-current-buffer (find-file-noselect file)
                  (unwind-protect
                      (progn
                        (funcall mode)
                        (hack-local-variables)
                        (gptel-mode)
                        (gptel-retention-mode)
                        (goto-char (point-max))
                        (when (re-search-backward "Local Variables" nil t)
                          (forward-line 0))
                        (insert text "\n")
                        (let (ended)
                          (add-hook 'gptel-post-response-functions
                                    (lambda (&rest _) (setq ended t)) nil t)
                          (gptel-send)
                          (test-helper-wait 5 "the end" (lambda () ended)))
                        (let ((inhibit-message t))
                          (save-buffer))
                        (setq gptel-retention-output-tools t))
                    (gptel-retention-mode -1)
                    (set-buffer-modified-p nil)
                    (kill-buffer))))
              (should (equal (list names names)
                             (mapcar #'tools-tests-names
                                     (tools-tests-requests)))))))))))

(ert-deftest tools-model-recalls-and-searches ()
  "O7, K3: the model gets the backend's text as it is, or one line."
  (let ((long (tools-tests-long 14000)))
    (tools-tests-with
        [(:calls [["recall_output" (:id "o1" :segment "s2" :offset 5)]])
         (:calls [["recall_output" (:id "o1" :pattern "x" :context 0)]])
         (:calls [["recall_output" (:id "o1" :first 3.0 :last 4)]])
         (:calls [["recall_output" (:id "o\n9" :segment :null)]])
         (:calls [["search_output" (:query "needle")]])
         (:text "Done.")]
        `(("output/recall"
           . [(:result (:id "o1") :file (:text_file ,long))
              (:result (:text "MATCH")) (:result (:text "LINES"))
              (:error (:code -32000 :message "secret inner text"
                             :data (:code "unknown_output")))])
          ("output/search" . [(:result (:text "FOUND"))]))
      (tools-tests-send "Go.")
      (should (equal
               (list long "MATCH" "LINES"
                     "Error: recall_output failed and has no result (o 9)."
                     "FOUND")
               (tools-tests-sent)))
      ;; What was recalled is not excerpted again.
      (should-not (tools-tests-saved))
      (should (equal
               '((:id "o1" :segment "s2" :first 0 :last 0 :pattern ""
                  :context 2 :offset 5 :cap 0 :by "model")
                 (:id "o1" :segment "" :first 0 :last 0 :pattern "x"
                  :context 0 :offset 0 :cap 0 :by "model")
                 (:id "o1" :segment "" :first 3 :last 4 :pattern ""
                  :context 2 :offset 0 :cap 0 :by "model")
                 (:id "o\n9" :segment "" :first 0 :last 0 :pattern ""
                  :context 2 :offset 0 :cap 0 :by "model"))
               (mapcar (lambda (params) (cddr params))
                       (turn-tests-params "output/recall"))))
      (should (equal '((:conversation "0123456789abcdef0123456789abcdef"
                        :query "needle" :cap 0 :offset 0))
                     (turn-tests-params "output/search"))))))


;;; Views

(ert-deftest tools-button-shows-the-whole ()
  "The whole output is fetched in pieces, and asked for as the user."
  (tools-tests-with tools-tests-call
      `(("output/save" . [,(tools-tests-answer "EXCERPT" "o1")])
        ("output/recall" . [(:result (:text "[o1: characters 0-4 of 12]\none\n"
                                      :more 4))
                            (:result (:more 9) :file (:text_file "two é\n"))
                            (:result (:text "end"))]))
    (tools-tests-send "Go." (tools-tests-long))
    (save-window-excursion
      (goto-char (point-min))
      (goto-char (button-start (next-button (point))))
      (push-button)
      (with-current-buffer "*retention output o1*"
        (unwind-protect
            (progn
              (should (equal "one\ntwo é\nend" (buffer-string)))
              (should buffer-read-only)
              (should truncate-lines)
              (should bidi-inhibit-bpa))
          (kill-buffer))))
    (should (equal '((0 "user") (4 "user") (9 "user"))
                   (mapcar (lambda (params)
                             (list (plist-get params :offset)
                                   (plist-get params :by)))
                           (turn-tests-params "output/recall"))))))

(ert-deftest tools-outputs-are-listed ()
  "O8: the list tells what is kept, and that many recalls are a sign."
  (pcase-dolist (`(,rate . ,warning) '((0.1 . nil) (0.2 . t)))
    (tools-tests-with [(:text "Hi.")]
        `(("output/list"
           . [(:result
               (:outputs [(:id "o1" :tool "make" :call "{\"p\":\"all\"}"
                           :at 0 :bytes 831488 :chars 800000 :lines 9000
                           :shown 15000 :strategy "segments" :recalls 2
                           :whole_recalls 1)]
                :stats (:large 12 :excerpts 10 :duplicates 1
                        :chars 900000 :shown 20000 :token_turns 5000
                        :recalls 2 :whole_recalls 1 :rate ,rate)
                :high_rate 0.1))])
          ("inspect/requests" . [(:result (:turns 1 :requests []))]))
      (tools-tests-send "Hello")
      (save-window-excursion
        (dolist (view '(gptel-retention-outputs gptel-retention-status))
          (with-current-buffer (funcall view)
            (unwind-protect
                (let ((text (buffer-substring-no-properties (point-min)
                                                            (point-max))))
                  (should (string-search "12 large, 10 sent as excerpts, 1"
                                         text))
                  (should (string-search "20000 of 900000" text))
                  (should (eq warning
                              (and (string-search "20 % of the excerpts" text)
                                   t)))
                  (when (eq view 'gptel-retention-outputs)
                    (should (string-search "9000 lines, 15000 of 800000" text))
                    (goto-char (point-min))
                    (should (equal "o1" (button-label (next-button
                                                       (point)))))))
              (kill-buffer))))))))


;;; Turning it off

(ert-deftest tools-off-leaves-gptel-as-it-was ()
  "Without a buffer that has the mode on, gptel has none of our advice."
  (let ((advised (lambda ()
                   (advice-member-p #'gptel-retention-tools--around-result
                                    'gptel--process-tool-call))))
    (test-helper-with-backend nil
      (with-temp-buffer
        (gptel-retention-mode)
        (should (funcall advised))
        (gptel-retention-mode -1)
        (should-not (funcall advised)))
      (with-current-buffer (generate-new-buffer "chat")
        (gptel-retention-mode)
        (should (funcall advised))
        (kill-buffer))
      (should-not (funcall advised)))))

(provide 'tools-tests)
;;; tools-tests.el ends here
