;;; response-tests.el --- What the provider sent  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; With the real gptel: the bodies of responses reach the backend byte for
;; byte, and what gptel shows of tool calls is in the provider's order.

;;; Code:

(require 'test-helper)
(require 'turn-tests)
(require 'gptel-anthropic)
(require 'gptel-bedrock)
(require 'gptel-gemini)
(require 'gptel-ollama)
(require 'gptel-openai-responses)

;; A parser of gptel that fails in a filter gives a message in a session; in
;; batch it would end Emacs.
(define-advice gptel-curl--stream-filter
    (:around (filter &rest arguments) response-tests)
  "Call FILTER with ARGUMENTS and demote its errors."
  (with-demoted-errors "In a session too: %S" (apply filter arguments)))

;;; Bodies

(defun response-tests-bodies ()
  "Return the bodies that the backend was given, unibyte strings."
  (mapcar (lambda (params)
            (let ((hex (plist-get params :body)))
              (apply #'unibyte-string
                     (cl-loop for n from 0 below (length hex) by 2
                              collect (string-to-number
                                       (substring hex n (+ n 2)) 16)))))
          (turn-tests-params "response/record")))

(defun response-tests-wire (body &rest headers)
  "Return an HTTP response with BODY and more HEADERS, as bytes."
  (encode-coding-string
   (concat "HTTP/1.1 200 OK\r\n"
           (mapconcat (lambda (header) (concat header "\r\n")) headers)
           (format "Content-Length: %d\r\n\r\n" (string-bytes body))
           body)
   'no-conversion))

(defun response-tests-answer (wire &optional cut)
  "Return an answer of the provider that sends WIRE, CUT bytes at a time."
  (list :wire (base64-encode-string wire t) :cut (or cut 0)))

(defun response-tests-bytes (&rest parts)
  "Return PARTS, strings, joined as bytes; multibyte ones as UTF-8."
  (mapconcat (lambda (part)
               (if (multibyte-string-p part)
                   (encode-coding-string part 'utf-8-unix)
                 part))
             parts))

(defconst response-tests-stream
  (response-tests-bytes
   ": hello\r\n\r\n"
   "data: {\"choices\":[{\"delta\":{\"content\":\"a \U0001F600 é\"}}]}\r\n\r\n"
   "data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n"
   "data: [DONE]\r\n\r\n"
   "\uFEFF" "lone cr\r, bad " "\xff\xfe\x80" " over " "\xc0\x80"
   " surrogate " "\xed\xa0\x80" " cut " "\xe2\x82")
  "A stream of the OpenAI chat API with odd bytes at its end.")

(defconst response-tests-whole
  (response-tests-bytes
   "{\"choices\":[{\"message\":{\"content\":\"a \U0001F600 é\"}}]}\r\n \r"
   "\xff\xfe\x80" "\xc0\x80" "\xed\xa0\x80" "\xe2\x82")
  "A whole response of the OpenAI chat API with odd bytes at its end.")

(defun response-tests-send-one (stream)
  "Send a prompt, with STREAM or without, and wait until it was recorded."
  (setq-local gptel-stream stream)
  (insert "Hello")
  (turn-tests-send)
  (turn-tests-settle "turn/complete" 1))

(ert-deftest response-tests-body-comes-byte-for-byte ()
  "Line ends, split and invalid characters reach the backend as they came."
  (dolist (stream '(t nil))
    (let ((body (if stream response-tests-stream response-tests-whole)))
      (dolist (cut '(0 1 7))
        (ert-info ((format "stream: %s, cut: %s" stream cut))
          (turn-tests-with-provider
              (vector (response-tests-answer
                       (response-tests-wire body) cut))
            (test-helper-with-backend nil
              (turn-tests-with-chat 'text-mode
                (response-tests-send-one stream)
                (should (string-match-p "a \U0001F600 é" (buffer-string)))
                (should (equal (list body) (response-tests-bodies)))
                (should (equal '("request/prepare" "request/commit"
                                 "response/record" "turn/complete")
                               (nthcdr 2 (test-helper-methods))))
                (let ((params (car (turn-tests-params "response/record")))
                      (prepare (car (turn-tests-params))))
                  (should (equal "p1" (plist-get params :plan)))
                  (dolist (key '(:conversation :request :array :identity))
                    (should (equal (plist-get prepare key)
                                   (plist-get params key)))))))))))))

(ert-deftest response-tests-url-body-comes-byte-for-byte ()
  "The same without curl, also if the answer comes in chunks."
  (let* ((body response-tests-whole)
         (half (/ (length body) 2))
         (chunk (lambda (bytes) (format "%x\r\n%s\r\n" (length bytes) bytes)))
         (chunked (concat "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
                          "\r\n"
                          (funcall chunk (substring body 0 half))
                          (funcall chunk (substring body half))
                          "0\r\n\r\n")))
    (dolist (wire (list (response-tests-wire body) chunked))
      (turn-tests-with-provider (vector (response-tests-answer wire))
        (test-helper-with-backend nil
          (turn-tests-with-chat 'text-mode
            (let ((gptel-use-curl nil))
              (response-tests-send-one nil))
            (should (equal (list body) (response-tests-bodies)))))))))

(ert-deftest response-tests-answer-is-shown-first ()
  "Nothing but a copy is made before the user sees the answer."
  (dolist (curl '(t nil))
    (ert-info ((format "curl: %s" curl))
      (turn-tests-with-provider [(:text "The answer.")]
        (test-helper-with-backend nil
          (turn-tests-with-chat 'text-mode
            (let* ((gptel-use-curl curl)
                   (chat (current-buffer))
                   (seen nil)
                   (note (lambda (&rest _)
                           (push (with-current-buffer chat (buffer-string))
                                 seen))))
              (unwind-protect
                  (progn
                    (advice-add 'gptel-retention-host-body :before note)
                    (response-tests-send-one nil))
                (advice-remove 'gptel-retention-host-body note))
              (should (equal 1 (length seen)))
              (should (string-search "The answer." (car seen))))))))))

(ert-deftest response-tests-headers-of-all-answers-are-cut-off ()
  "Several blocks of headers, also odd ones, are no part of the body."
  (let ((body "{\"choices\":[{\"message\":{\"content\":\"Hi\"}}]}"))
    (dolist (before '("HTTP/1.1 100 Continue\r\n\r\n"
                      "HTTP/1.1 307 Away\r\nLocation: /x\r\n\r\n"))
      (ert-info (before)
        (turn-tests-with-provider
            (apply #'vector
                   (let ((wire (response-tests-wire
                                body (response-tests-bytes "X-Odd: é\xff"))))
                     (if (string-match-p "100" before)
                         (list (response-tests-answer (concat before wire)))
                       (list (response-tests-answer before)
                             (response-tests-answer wire)))))
          (test-helper-with-backend nil
            (turn-tests-with-chat 'text-mode
              (setq-local gptel-stream nil)
              (insert "Hello")
              (turn-tests-send)
              (turn-tests-settle "response/record" 1)
              (should (equal (list body) (response-tests-bodies))))))))))

(defun response-tests-frame (type payload)
  "Return a message of AWS's event stream of TYPE with PAYLOAD, bytes."
  (let* ((header (lambda (name value)
                   (concat (unibyte-string (length name)) name
                           (unibyte-string 7 0 (length value)) value)))
         (headers (concat (funcall header ":message-type" "event")
                          (funcall header ":event-type" type)
                          (funcall header ":content-type"
                                   "application/json")))
         (number (lambda (n)
                   (apply #'unibyte-string
                          (mapcar (lambda (shift) (logand 255 (ash n shift)))
                                  '(-24 -16 -8 0))))))
    (concat (funcall number (+ 16 (length headers) (length payload)))
            (funcall number (length headers))
            "\xff\x0d\x0a\x00" headers payload "\x80\x81\r\n")))

(ert-deftest response-tests-binary-stream-comes-byte-for-byte ()
  "A binary event stream, as Bedrock's, is handed over as it came."
  (let ((body (response-tests-bytes
               (response-tests-frame "messageStart" "{\"role\":\"assistant\"}")
               (response-tests-frame
                "contentBlockDelta"
                (response-tests-bytes
                 "{\"contentBlockIndex\":0,"
                 "\"delta\":{\"text\":\"a \U0001F600 é\"}}"))
               (response-tests-frame "contentBlockStop"
                                     "{\"contentBlockIndex\":0}")
               (response-tests-frame "messageStop"
                                     "{\"stopReason\":\"end_turn\"}"))))
    (turn-tests-with-provider
        (vector (response-tests-answer
                 (response-tests-wire
                  body "Content-Type: application/vnd.amazon.eventstream")))
      (let ((turn-tests-backend
             (gptel-make-bedrock
              "B" :region "us-east-1" :aws-bearer-token "none" :stream t
              :protocol "http" :models '(claude-sonnet-4-5-20250929)
              :host (gptel-backend-host turn-tests-backend))))
        (test-helper-with-backend nil
          (turn-tests-with-chat 'text-mode
            (setq-local gptel-model 'claude-sonnet-4-5-20250929)
            (response-tests-send-one t)
            (should (string-match-p "a \U0001F600 é" (buffer-string)))
            (should (equal (list body) (response-tests-bodies)))))))))

(ert-deftest response-tests-large-body-is-not-inline ()
  "A body of many frames' size is handed over whole."
  (let ((body (response-tests-bytes
               "data: {\"choices\":[{\"delta\":{\"content\":\""
               (mapconcat #'identity (make-list 100000 "é"))
               "\"}}]}\n\ndata: [DONE]\n\n")))
    (turn-tests-with-provider
        (vector (response-tests-answer (response-tests-wire body)))
      (test-helper-with-backend nil
        (turn-tests-with-chat 'text-mode
          (response-tests-send-one t)
          (should (equal (list body) (response-tests-bodies)))
          (should-not (directory-files (gptel-retention-rpc-directory) nil
                                       "\\`gptel")))))))

(ert-deftest response-tests-what-is-not-recorded ()
  "Nothing is recorded of a refusal, a cut transfer or an unplanned request."
  (let* ((body "{\"choices\":[{\"message\":{\"content\":\"Hi\"}}]}")
         (wire (response-tests-wire body)))
    (pcase-dolist
        (`(,what ,answer . ,steps)
         `((fine ,(response-tests-answer wire))
           (refused (:status 400))
           (refused-behind-a-proxy
            ,(response-tests-answer
              (concat "HTTP/1.1 100 Continue\r\n\r\n"
                      (string-replace "200 OK" "400 No" wire))))
           (cut ,(response-tests-answer (substring wire 0 -5)))
           (unplanned ,(response-tests-answer wire)
                      ("request/prepare"
                       . [(:error (:code -32603 :message "internal"
                                         :data (:code "internal")))]))
           (unable ,(response-tests-answer wire)
                   ("initialize" . [(:result (:capabilities []))]))))
      (dolist (stream '(t nil))
        (ert-info ((format "%s, stream: %s" what stream))
          (turn-tests-with-provider (vector answer)
            (test-helper-with-backend steps
              (turn-tests-with-chat 'text-mode
                (setq-local gptel-stream stream)
                (insert "Hello")
                (turn-tests-send)
                (test-helper-wait
                 3 "what is due"
                 (lambda ()
                   (null (gptel-retention-turn--conversation-pending
                          gptel-retention-turn--conversation))))
                (gptel-retention-rpc-call "inspect/check" nil)
                (should (equal (if (eq what 'fine) (list body) nil)
                               (response-tests-bodies)))))))))))

(ert-deftest response-tests-each-round-is-recorded-before-the-next ()
  "A response is recorded before the next prepare of its request."
  (dolist (stream '(t nil))
    (turn-tests-with-provider
        [(:text "L." :calls [["read" (:p "a")]])
         (:text "L." :calls [["read" (:p "b")]]) (:text "Done.")]
      (test-helper-with-backend nil
        (turn-tests-with-chat 'text-mode
          (setq-local gptel-use-tools t
                      gptel-confirm-tool-calls nil
                      gptel-tools (list (turn-tests-tool)))
          (response-tests-send-one stream)
          (should (equal '("request/prepare" "request/commit"
                           "response/record"
                           "request/prepare" "request/commit"
                           "response/record"
                           "request/prepare" "request/commit"
                           "response/record" "turn/complete")
                         (nthcdr 2 (test-helper-methods))))
          (should (equal '("p1" "p2" "p3")
                         (mapcar (lambda (params) (plist-get params :plan))
                                 (turn-tests-params "response/record")))))))))

(ert-deftest response-tests-round-without-a-plan-is-no-other-rounds ()
  "What an unplanned request of the loop is answered belongs to no plan."
  (pcase-dolist (`(,answer . ,stream)
                 '(((:text "Done.") . t) ((:text "Done.") . nil)
                   ((:status 400) . nil)))
    (turn-tests-with-provider
        (vector '(:text "L." :calls [["read" (:p "a")]]) answer)
      (test-helper-with-backend
          `(("request/prepare"
             . [(:result
                 (:edits [(:keep 2)
                          (:insert ,turn-tests-due)]))
                (:error (:code -32603 :message "internal"
                               :data (:code "internal")))]))
        (turn-tests-with-chat 'text-mode
          (setq-local gptel-stream stream
                      gptel-use-tools t
                      gptel-confirm-tool-calls nil
                      gptel-tools (list (turn-tests-tool)))
          (insert "Hello")
          (turn-tests-send)
          (accept-process-output nil 0.05)
          (gptel-retention-rpc-call "inspect/check" nil)
          (should (equal '("p1")
                         (mapcar (lambda (params) (plist-get params :plan))
                                 (turn-tests-params "response/record"))))
          (should-not (test-helper-log "request/refused")))))))

;;; Results of calls

(defvar response-tests-port nil
  "Port of the loopback provider.")

(defmacro response-tests-with-loopback (script &rest body)
  "Run BODY with the strict provider of the tests, which follows SCRIPT.
SCRIPT is a vector of plists, see tests/loopback/script.py."
  (declare (indent 1) (debug t))
  `(let* ((answers (make-temp-file "retention-answers"))
          (output (generate-new-buffer " *loopback*"))
          (default-directory (expand-file-name "../.." test-helper-directory))
          (process (progn
                     (write-region (json-serialize ,script) nil answers nil
                                   'silent)
                     (make-process
                      :name "loopback" :buffer output :noquery t
                      :command (list (test-helper-python) "-m" "tests.loopback"
                                     "--script" answers)))))
     (unwind-protect
         (let ((response-tests-port
                (progn
                  (test-helper-wait
                   10 "the provider"
                   (lambda ()
                     (string-search "\n" (with-current-buffer output
                                           (buffer-string)))))
                  (plist-get (json-parse-string
                              (with-current-buffer output (buffer-string))
                              :object-type 'plist)
                             :port)))
               (gptel--known-backends nil))
           ,@body)
       (delete-process process)
       (kill-buffer output)
       (delete-file answers))))

(defconst response-tests-apis
  '(anthropic openai responses gemini ollama)
  "APIs whose calls are shown.")

(defun response-tests-backend (api)
  "Return a backend that speaks API with the loopback provider."
  (let ((more (list :host (format "127.0.0.1:%d" response-tests-port)
                    :protocol "http" :stream t :models '(m))))
    (pcase api
      ('anthropic (apply #'gptel-make-anthropic "A" :key "k" more))
      ('openai (apply #'gptel-make-openai "O" :key "k" more))
      ('responses (apply #'gptel-make-openai-responses "R" :key "k" more))
      ('gemini (apply #'gptel-make-gemini "G" :key "k" more))
      ('ollama (apply #'gptel-make-ollama "L" more)))))

(defun response-tests-tools (names)
  "Return tools with NAMES; the one called \"slow\" answers a bit later."
  (mapcar (lambda (name)
            (let ((answer (lambda (p) (format "%s of %s \n" name p))))
              (gptel-make-tool
               :name name :description "?" :include t
               :args '((:name "p" :type string :description "?"))
               :async (equal name "slow")
               :function (if (equal name "slow")
                             (lambda (callback p)
                               (run-at-time (if (equal p "a") 0.05 0.01) nil
                                            (lambda ()
                                              (funcall callback
                                                       (funcall answer p)))))
                           answer))))
          names))

(defun response-tests-shown ()
  "Return the calls that this buffer shows, (ID NAME ARGUMENT RESULT) each."
  (save-excursion
    (goto-char (point-min))
    (let (calls match)
      (while (setq match (text-property-search-forward
                          'gptel nil (lambda (_ value)
                                       (eq (car-safe value) 'tool))))
        (goto-char (prop-match-beginning match))
        (let ((call (read (current-buffer))))
          (push (list (cdr (prop-match-value match))
                      (plist-get call :name)
                      (plist-get (plist-get call :args) :p)
                      (string-trim (buffer-substring-no-properties
                                    (point) (prop-match-end match))))
                calls)
          (goto-char (prop-match-end match))))
      (nreverse calls))))

(defmacro response-tests-with-calls (calls &rest body)
  "Run BODY with CALLS bound to what gptel holds of each round's calls.
They are lists of (ID NAME ARGUMENT RESULT) in gptel's order."
  (declare (indent 1) (debug t))
  `(let (,calls)
     (advice-add 'gptel--handle-tool-result :before
                 (lambda (fsm)
                   (push (mapcar
                          (lambda (call)
                            (list (plist-get call :id) (plist-get call :name)
                                  (plist-get (plist-get call :args) :p)
                                  (string-trim (plist-get call :result))))
                          (plist-get (gptel-fsm-info fsm) :tool-use))
                         ,calls))
                 '((name . response-tests)))
     (unwind-protect (progn ,@body)
       (advice-remove 'gptel--handle-tool-result 'response-tests))))

(ert-deftest response-tests-parallel-calls-keep-order-and-ids ()
  "R4: each call is shown with its own id and result, as the provider called."
  (dolist (api response-tests-apis)
    (dolist (stream '(t nil))
      (dolist (mode '(org-mode markdown-mode text-mode))
        (ert-info ((format "%s, stream: %s, %s" api stream mode))
          (response-tests-with-loopback
              [( :text "Let me look."
                 :calls [ (:name "read" :args (:p "a"))
                          (:name "slow" :args (:p "a"))
                          (:name "read" :args (:p "b"))
                          (:name "slow" :args (:p "b"))])
               (:calls [(:name "read" :args (:p "c"))
                        (:name "read" :args (:p "d"))])
               (:text "Done.")]
            (test-helper-with-backend nil
              (response-tests-with-calls rounds
                (let ((turn-tests-backend (response-tests-backend api)))
                  (turn-tests-with-chat mode
                    (setq-local gptel-use-tools t
                                gptel-confirm-tool-calls nil
                                gptel-tools (response-tests-tools
                                             '("read" "slow")))
                    (response-tests-send-one stream)
                    (let ((shown (response-tests-shown)))
                      (should (equal '(("read" "a" "read of a")
                                       ("slow" "a" "slow of a")
                                       ("read" "b" "read of b")
                                       ("slow" "b" "slow of b")
                                       ("read" "c" "read of c")
                                       ("read" "d" "read of d"))
                                     (mapcar #'cdr shown)))
                      (should (equal 2 (length rounds)))
                      (should (seq-set-equal-p
                               (apply #'append rounds) shown))
                      ;; Ollama has no ids.
                      (should (equal (if (eq api 'ollama) 1 6)
                                     (length (seq-uniq
                                              (mapcar #'car shown)))))
                      ;; The span of the round is in that order, too.
                      (let ((span (plist-get (cadr (turn-tests-params))
                                             :span)))
                        (should (apply #'<
                                       (mapcar
                                        (lambda (call)
                                          (string-search (nth 3 call) span))
                                        (seq-take shown 4)))))
                      (should-not
                       (plist-member (car (turn-tests-params "turn/complete"))
                                     :whole)))))))))))))

(ert-deftest response-tests-url-calls-keep-order-and-ids ()
  "R4: it is the same without curl, and each round is recorded."
  (dolist (api response-tests-apis)
    (ert-info ((symbol-name api))
      (response-tests-with-loopback
          [(:calls [(:name "read" :args (:p "a")) (:name "slow" :args (:p "a"))
                    (:name "read" :args (:p "b"))])
           (:text "Done.")]
        (test-helper-with-backend nil
          (response-tests-with-calls rounds
            (let ((turn-tests-backend (response-tests-backend api)))
              (turn-tests-with-chat 'text-mode
                (setq-local gptel-use-tools t
                            gptel-confirm-tool-calls nil
                            gptel-tools (response-tests-tools
                                         '("read" "slow")))
                (let ((gptel-use-curl nil))
                  (response-tests-send-one nil))
                (let ((shown (response-tests-shown)))
                  (should (equal '(("read" "a") ("slow" "a") ("read" "b"))
                                 (mapcar (lambda (call)
                                           (seq-subseq call 1 3))
                                         shown)))
                  (should (seq-set-equal-p (car rounds) shown)))
                (should (equal '("p1" "p2")
                               (mapcar (lambda (params)
                                         (plist-get params :plan))
                                       (turn-tests-params
                                        "response/record"))))
                ;; They are what an API sends that is not streamed.
                (dolist (body (response-tests-bodies))
                  (should (json-parse-string
                           (decode-coding-string body 'utf-8))))))))))))

(defun response-tests-render (mode stream place results calls order)
  "Return what gptel makes of RESULTS and CALLS in a chat in MODE.
STREAM tells which of gptel's functions inserts; PLACE is `start' for
the start of the response, `text' for behind some text of it, `again'
for behind the results of another round.  ORDER is called with gptel's
renderer, RESULTS and the plist of the request."
  (with-temp-buffer
    (funcall mode)
    (setq-local gptel-mode t)
    (insert "Hello")
    (let* ((insert (if stream #'gptel-curl--stream-insert-response
                     #'gptel--insert-response))
           (info (list :backend turn-tests-backend :buffer (current-buffer)
                       :position (point-marker) :callback insert
                       :tools (mapcar #'car results)
                       :tool-use (copy-sequence calls) :stream stream)))
      (pcase place
        ('text (funcall insert "Look." info))
        ('again (funcall insert "Look." info)
                (gptel--display-tool-results (take 1 results) info)
                (funcall insert "More." info)))
      (funcall order #'gptel--display-tool-results results info)
      (funcall insert "End." info)
      (should (equal calls (plist-get info :tool-use)))
      (buffer-string))))

(ert-deftest response-tests-results-look-as-gptel-makes-them ()
  "R4: separators and blank lines are those that gptel makes for all at once."
  (let* ((tool (car (response-tests-tools '("read"))))
         (results (mapcar (lambda (p) (list tool (list :p p) (concat p "\n")))
                          '("a" "b" "c")))
         (calls (cl-mapcar (lambda (result n)
                             (list :id (format "call_%d" n) :name "read"
                                   :args (nth 1 result)
                                   :result (nth 2 result)))
                           results '(1 2 3)))
         (ids (lambda (text)
                (seq-uniq
                 (cl-loop for at = 0 then (next-single-property-change
                                           at 'gptel text)
                          while at
                          for value = (get-text-property at 'gptel text)
                          when (eq (car-safe value) 'tool)
                          collect (cdr value))))))
    (dolist (mode '(org-mode markdown-mode text-mode))
      (dolist (stream '(t nil))
        (dolist (place '(start text again))
          (ert-info ((format "%s, stream: %s, %s" mode stream place))
            (let ((theirs (response-tests-render
                           mode stream place results calls #'funcall))
                  (ours (response-tests-render
                         mode stream place results calls
                         (lambda (show results info)
                           (cl-letf (((symbol-function
                                       'gptel-retention-turn--request-of)
                                      (lambda (_)
                                        (make-gptel-retention-turn--request))))
                             (gptel-retention-turn--around-results
                              show (reverse results) info))))))
              (should (string= theirs ours))
              (should (equal '("call_1") (funcall ids theirs)))
              (should (equal '("call_1" "call_2" "call_3")
                             (funcall ids ours))))))))))

(ert-deftest response-tests-error-of-ours-shows-results-all-the-same ()
  "R4: if the order cannot be told, gptel's renderer gets what it got."
  (let ((gptel-retention-rpc--reported nil) got)
    (cl-letf (((symbol-function 'gptel-retention-turn--request-of)
               (lambda (_) (error "Broken"))))
      (should (equal 1 (length (test-helper-messages
                                 (gptel-retention-turn--around-results
                                  (lambda (&rest args) (setq got args))
                                  '(1 2) '(:tool-use nil)))))))
    (should (equal '((1 2) (:tool-use nil)) got))))

(ert-deftest response-tests-results-find-their-calls ()
  "R4: by name, arguments and result, then by less; each call once."
  (let* ((tool (car (response-tests-tools '("read"))))
         (call (lambda (id p result)
                 (list :id id :name "read" :args (list :p p) :result result)))
         (order (lambda (results calls &optional text)
                  (mapcar (lambda (pair) (plist-get (cdr pair) :id))
                          (gptel-retention-host-order-results
                           (mapcar (pcase-lambda (`(,p . ,result))
                                     (list tool (list :p p) result))
                                   results)
                           (list :tool-use calls) (and text (list text)))))))
    ;; Two equal calls with two results.
    (should (equal '("2" "1")
                   (funcall order '(("a" . "x") ("a" . "y"))
                            (list (funcall call "1" "a" "y")
                                  (funcall call "2" "a" "x"))
                            "{\"id\":\"2\"},{\"id\":\"1\"}")))
    ;; A hook changed what the provider gets, not what is shown.
    (should (equal '("1" "2")
                   (funcall order '(("b" . "x") ("a" . "shown"))
                            (list (funcall call "1" "a" "sent")
                                  (funcall call "2" "b" "x")))))
    ;; An id that the response does not name: gptel's order of the calls.
    (should (equal '("1" "2")
                   (funcall order '(("b" . "x") ("a" . "x"))
                            (list (funcall call "1" "a" "x")
                                  (funcall call "2" "b" "x"))
                            "{\"id\":\"2\"}")))
    ;; A result without a call comes last.
    (should (equal '("1" nil)
                   (funcall order '(("c" . "x") ("a" . "x"))
                            (list (funcall call "1" "a" "x")))))))

;;; What else happens in the loop

(defmacro response-tests-with-turn (api stream calls &rest body)
  "Run BODY in a chat with API in which the model makes CALLS, then ends.
STREAM tells whether it streams.  CALLS is a vector of names of tools."
  (declare (indent 3) (debug t))
  `(response-tests-with-loopback
       (vector (list :text "Let me look."
                     :calls (vconcat
                             (mapcar (lambda (name)
                                       (list :name name :args '(:p "a")))
                                     ,calls)))
               '(:text "Done."))
     (test-helper-with-backend nil
       (let ((turn-tests-backend (response-tests-backend ,api)))
         (turn-tests-with-chat 'text-mode
           (setq-local gptel-stream ,stream
                       gptel-use-tools t
                       gptel-confirm-tool-calls nil
                       gptel-tools (response-tests-tools '("read" "slow")))
           (insert "Hello")
           ,@body)))))

(ert-deftest response-tests-pre-tool-hook-is-told ()
  "H6: a call that a user's hook changed is told, in each API."
  (skip-unless (fboundp 'gptel--inject-tool-call)) ; since 0.9.9.5
  (pcase-dolist (`(,api ,stream ,change ,hooked)
                 (append
                  (cl-loop for api in response-tests-apis
                           for stream = t then (not stream)
                           collect (list api stream '(:args (:p "b")) t))
                  ;; A blocked call is one that failed; gptel sends it.
                  '((anthropic t (:block t) :json-false))))
    (ert-info ((format "%s, stream: %s, %s" api stream change))
      (response-tests-with-turn api stream ["read"]
        (add-hook 'gptel-pre-tool-call-functions (lambda (_call) change) nil t)
        (turn-tests-send)
        (turn-tests-settle "turn/complete" 1)
        (should (equal (list :json-false hooked)
                       (mapcar (lambda (params) (plist-get params :hooked))
                               (turn-tests-params))))))))

(defun response-tests-span (params)
  "Return the span in PARAMS of a request, a list of messages."
  (append (json-parse-string (plist-get params :span) :object-type 'plist) nil))

(ert-deftest response-tests-steering-is-part-of-the-span ()
  "Q4: what the user says between two rounds stands in the round's span."
  (skip-unless (fboundp 'gptel--handle-tool-steer)) ; since 0.9.9.6
  (dolist (api response-tests-apis)
    (dolist (stream '(t nil))
      (ert-info ((format "%s, stream: %s" api stream))
        (response-tests-with-turn api stream ["slow"]
          (add-hook 'gptel-pre-tool-call-functions
                    (lambda (_call)
                      (plist-put (gptel-fsm-info gptel--fsm-last)
                                 :steering-message "Be quick!")
                      nil)
                    nil t)
          (turn-tests-send)
          (goto-char (point-max))
          (insert "\n\nThanks")
          (turn-tests-send)
          (turn-tests-settle "request/prepare" 3)
          (pcase-let* ((`(,_ ,second ,third) (turn-tests-params))
                       (span (response-tests-span second))
                       (last (response-tests-span
                              (car (turn-tests-params "turn/complete"))))
                       (tail (append (json-parse-string
                                      (plist-get third :tail)
                                      :object-type 'plist)
                                     nil)))
            (should (string-match-p "Be quick" (format "%S" (last span))))
            (should-not (string-match-p "Be quick" (format "%S" last)))
            ;; What the next turn rebuilds are the spans.
            (should (equal (append span last) (butlast tail)))
            (should-not (plist-member (car (turn-tests-params "turn/complete"))
                                      :whole))))))))

(ert-deftest response-tests-typing-below-is-no-part-of-the-span ()
  "What the user types below a response that goes on is the next prompt."
  (skip-unless (fboundp 'gptel--handle-tool-steer)) ; since 0.9.9.6
  (dolist (api response-tests-apis)
    (ert-info ((symbol-name api))
      (response-tests-with-turn api t ["slow"]
        (let ((typed nil))
          (add-hook 'gptel-post-stream-hook
                    (lambda ()
                      (unless typed
                        (setq typed t)
                        (save-excursion
                          (goto-char (point-max))
                          (insert "\nMy next prompt"))))
                    nil t)
          (turn-tests-send)
          (turn-tests-settle "turn/complete" 1)
          (should typed)
          (dolist (params (list (cadr (turn-tests-params))
                                (car (turn-tests-params "turn/complete"))))
            (should-not (string-match-p "next prompt"
                                        (plist-get params :span))))
          (should (equal '("slow" "a" "slow of a")
                         (cdar (response-tests-shown)))))))))

(ert-deftest response-tests-split-result-is-sent-whole ()
  "F9: a result that a note splits goes out as one; the chat is not touched."
  (skip-unless (fboundp 'gptel--realize-query))
  (dolist (api response-tests-apis)
    (ert-info ((symbol-name api))
      (response-tests-with-turn api t ["read" "read"]
        (turn-tests-send)
        (goto-char (point-min))
        (search-forward "read of")
        (insert (propertize "[audit]" 'gptel 'ignore))
        (goto-char (point-max))
        (insert "\n\nThanks")
        (let ((before (buffer-string)))
          (let ((payload (format "%S" (plist-get
                                       (gptel-fsm-info
                                        (gptel-request nil :dry-run t))
                                       :data))))
            (with-temp-buffer
              (insert payload)
              (should (equal 2 (count-matches "read of a" (point-min)
                                              (point-max)))))
            (should-not (string-match-p "audit" payload)))
          (should (equal-including-properties before (buffer-string))))))))

(provide 'response-tests)
;;; response-tests.el ends here
